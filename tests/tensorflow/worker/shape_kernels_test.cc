// SPDX-License-Identifier: Apache-2.0
// Kernels that change shapes, put tensors together and take them apart.
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>

#include "tests/tensorflow/worker/kernel_fixture.h"

namespace ferry::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor Counting(const std::vector<int64_t>& dims) {
  std::vector<float> elements(static_cast<size_t>(Shape::Create(dims)->element_count()));
  std::iota(elements.begin(), elements.end(), 0.f);
  return TensorOf<float>(dims, elements);
}

NodeWriter Floats(const std::string& op) { return NodeWriter(op).Type("T", DataType::kFloat); }

// An op that only changes the shape must not copy a gigabyte.
TEST(Views, ShareTheBuffer) {
  const Tensor input = Counting({4, 1, 3});
  struct Row {
    NodeWriter node;
    std::vector<Tensor> inputs;
    std::vector<int64_t> dims;
    size_t offset_bytes;
  };
  NodeWriter squeeze = Floats("Squeeze");
  const std::vector<Row> rows = {
      {Floats("Reshape").Type("Tshape", DataType::kInt32), {input, Ints({-1, 6})}, {2, 6}, 0},
      {Floats("ExpandDims").Type("Tdim", DataType::kInt32), {input, Ints({0})}, {1, 4, 1, 3}, 0},
      {squeeze, {input}, {4, 3}, 0},
      {Floats("Slice").Type("Index", DataType::kInt32),
       {input, Ints({1, 0, 0}), Ints({2, -1, 3})},
       {2, 1, 3},
       12},
      {Floats("Slice").Type("Index", DataType::kInt32),
       {input, Ints({3, 0, 1}), Ints({1, 1, 2})},
       {1, 1, 2},
       40},
      {Floats("Transpose").Type("Tperm", DataType::kInt32), {input, Ints({1, 0, 2})}, {1, 4, 3}, 0},
      {Floats("Pack").Int("N", 1), {input}, {1, 4, 1, 3}, 0},
  };
  for (const Row& row : rows) {
    const auto output = Compute(row.node, row.inputs);
    ASSERT_TRUE(output.ok()) << output.status();
    EXPECT_EQ(output->shape(), *Shape::Create(row.dims)) << row.node.Complete().op();
    EXPECT_EQ(output->data(), static_cast<const char*>(input.data()) + row.offset_bytes)
        << row.node.Complete().op();
  }
  const auto pieces =
      ComputeAll(Floats("Split").Int("num_split", 2), {ScalarOf<int32_t>(0), input});
  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(pieces->at(1).data(), static_cast<const char*>(input.data()) + 24);
}

TEST(Reshape, RefusesIncompatibleShapes) {
  const NodeWriter node = Floats("Reshape").Type("Tshape", DataType::kInt64);
  const Tensor input = Counting({2, 3});
  const auto to = [](const std::vector<int64_t>& dims) {
    return TensorOf<int64_t>({static_cast<int64_t>(dims.size())}, dims);
  };
  EXPECT_THAT(Compute(node, {input, to({4, 2})}),
              Fails(kInvalid,
                    "Input to reshape is a tensor with 6 values, but the requested shape "
                    "has 8"));
  EXPECT_THAT(Compute(node, {input, to({-1, 4})}),
              Fails(kInvalid, HasSubstr("requires a multiple of 4")));
  EXPECT_THAT(Compute(node, {input, to({-1, 2, -1})}),
              Fails(kInvalid, HasSubstr("not both 0 and 2")));
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Compute(node, {input, to({kHuge, 2})}),
              Fails(kInvalid, HasSubstr("has too many elements")));
  EXPECT_THAT(Compute(node, {input, to({std::numeric_limits<int64_t>::min()})}),
              Fails(kInvalid, HasSubstr("must be non-negative")));
  EXPECT_THAT(Compute(node, {input, to(std::vector<int64_t>(254, 1))}),
              Fails(kInvalid, HasSubstr("too many dimensions")));
}

TEST(Squeeze, InvalidDimensionsAreRefused) {
  NodeWriter node = Floats("Squeeze");
  node["squeeze_dims"].mutable_list()->add_i(std::numeric_limits<int64_t>::min());
  EXPECT_THAT(Compute(node, {Counting({1})}),
              Fails(kInvalid, HasSubstr("Tried to squeeze dim index")));
}

TEST(Slice, RefusesRangesOutside) {
  const NodeWriter node = Floats("Slice").Type("Index", DataType::kInt64);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  for (const int64_t begin : {int64_t{-1}, int64_t{5}, kHuge, kLeast}) {
    for (const int64_t size : {int64_t{0}, int64_t{-1}, kHuge, kLeast}) {
      EXPECT_THAT(Compute(node, {Counting({4}), TensorOf<int64_t>({1}, {begin}),
                                 TensorOf<int64_t>({1}, {size})}),
                  Fails(kInvalid, HasSubstr("Expected begin[0] in [0, 4]")))
          << begin << " " << size;
    }
  }
  EXPECT_THAT(
      Compute(node, {Counting({4}), TensorOf<int64_t>({1}, {2}), TensorOf<int64_t>({1}, {kHuge})}),
      Fails(kInvalid, HasSubstr("Expected size[0] in [0, 2]")));
}

TEST(Slice, Strings) {
  const NodeWriter node =
      NodeWriter("Slice").Type("T", DataType::kString).Type("Index", DataType::kInt32);
  const auto output =
      Compute(node, {Strings({2, 2}, {"a", "b", "c", "d"}), Ints({0, 1}), Ints({2, 1})});
  ASSERT_TRUE(output.ok());
  EXPECT_THAT(output->strings(), ElementsAre("b", "d"));
}

// The reference implementation: every element by its indices.
TEST(Transpose, MovesEveryElement) {
  std::mt19937 random(20240607);  // NOLINT(bugprone-random-generator-seed)
  for (int round = 0; round < 300; ++round) {
    const size_t rank = 1 + random() % 5;
    std::vector<int64_t> dims(rank);
    std::vector<int32_t> order(rank);
    for (int64_t& dim : dims) dim = 1 + static_cast<int64_t>(random() % (rank <= 2 ? 70 : 5));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const Tensor input = Counting(dims);
    const auto output =
        Compute(Floats("Transpose").Type("Tperm", DataType::kInt32), {input, Ints(order)});
    ASSERT_TRUE(output.ok());
    std::vector<int64_t> strides(rank, 1);
    for (size_t i = rank; i-- > 1;) strides[i - 1] = strides[i] * dims[i];
    for (int64_t at = 0; at < output->shape().element_count(); ++at) {
      int64_t rest = at;
      int64_t from = 0;
      for (size_t i = rank; i-- > 0;) {
        const size_t axis = static_cast<size_t>(order[i]);
        from += rest % dims[axis] * strides[axis];
        rest /= dims[axis];
      }
      ASSERT_EQ(output->elements<float>()[static_cast<size_t>(at)], static_cast<float>(from));
    }
  }
}

// TensorFlow 2.15 ends its process at the first of these, and later releases take it.
TEST(Transpose, TakesNegativeAxes) {
  const NodeWriter node = Floats("Transpose").Type("Tperm", DataType::kInt32);
  const auto output = Compute(node, {Counting({2, 3}), Ints({-1, 0})});
  ASSERT_TRUE(output.ok());
  EXPECT_THAT(ElementsOf<float>(*output), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(Compute(node, {Counting({2, 3}), Ints({-3, 0})}),
              Fails(kInvalid, HasSubstr("out of range")));
  EXPECT_THAT(Compute(node, {Counting({2, 3}), Ints({1, 1})}),
              Fails(kInvalid, "0 is missing from {1,1}."));
}

TEST(Fill, LargerThanMemoryIsRefused) {
  const NodeWriter node = Floats("Fill").Type("index_type", DataType::kInt64);
  const auto dims = [](const std::vector<int64_t>& values) {
    return TensorOf<int64_t>({static_cast<int64_t>(values.size())}, values);
  };
  EXPECT_THAT(Compute(node, {dims({1 << 20, 1 << 20}), ScalarOf<float>(1)}),
              Fails(absl::StatusCode::kResourceExhausted,
                    HasSubstr("OOM when allocating tensor with shape[1048576,1048576] and type "
                              "float")));
  EXPECT_THAT(Compute(node, {dims({std::numeric_limits<int64_t>::max()}), ScalarOf<float>(1)}),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("OOM")));
  EXPECT_THAT(Compute(node, {dims({1 << 30, 1 << 30, 1 << 30}), ScalarOf<float>(1)}),
              Fails(kInvalid, HasSubstr("more than 2**63 - 1 elements")));
  EXPECT_THAT(Compute(node, {dims(std::vector<int64_t>(300, 1)), ScalarOf<float>(1)}),
              Fails(kInvalid, HasSubstr("dimensions")));
  const NodeWriter strings =
      NodeWriter("Fill").Type("T", DataType::kString).Type("index_type", DataType::kInt64);
  EXPECT_THAT(Compute(strings, {dims({int64_t{1} << 40}), Strings({}, {""})}),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("OOM")));
  EXPECT_THAT(Compute(strings, {dims({1 << 20}), Strings({}, {std::string(1 << 20, 'x')})}),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("OOM")));
}

TEST(Fill, WritesEveryElement) {
  for (const int64_t count : {0, 1, 2, 3, 1000, 100003}) {
    const auto floats = Compute(Floats("Fill").Type("index_type", DataType::kInt64),
                                {TensorOf<int64_t>({1}, {count}), ScalarOf<float>(1.5)});
    ASSERT_TRUE(floats.ok());
    EXPECT_EQ(ElementsOf<float>(*floats), std::vector<float>(static_cast<size_t>(count), 1.5));
  }
}

// A value of one element may be a scalar or a vector; dims may be either too.
TEST(Fill, RefusesValuesThatAreNoScalars) {
  const NodeWriter node = Floats("Fill").Type("index_type", DataType::kInt32);
  for (const Tensor& one : {ScalarOf<float>(7), TensorOf<float>({1}, {7})}) {
    for (const Tensor& dims : {ScalarOf<int32_t>(2), Ints({2})}) {
      const auto output = Compute(node, {dims, one});
      ASSERT_TRUE(output.ok()) << output.status();
      EXPECT_THAT(ElementsOf<float>(*output), ElementsAre(7, 7));
    }
  }
  for (const Tensor& more : {TensorOf<float>({2}, {7, 8}), TensorOf<float>({1, 1}, {7}),
                             TensorOf<float>({1, 2}, {7, 8}), TensorOf<float>({0}, {})}) {
    EXPECT_THAT(Compute(node, {Ints({2}), more}),
                Fails(kInvalid, HasSubstr("value must represent a scalar, got shape")));
  }
  EXPECT_THAT(Compute(node, {TensorOf<int32_t>({1, 1}, {2}), ScalarOf<float>(7)}),
              Fails(kInvalid, HasSubstr("dims must represent a vector, got shape")));
}

TEST(Range, LargerThanMemoryIsRefused) {
  const NodeWriter node = NodeWriter("Range").Type("Tidx", DataType::kInt64);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  EXPECT_THAT(Compute(node, {ScalarOf<int64_t>(0), ScalarOf<int64_t>(kHuge), ScalarOf<int64_t>(1)}),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("OOM")));
  EXPECT_THAT(
      Compute(node, {ScalarOf<int64_t>(kLeast), ScalarOf<int64_t>(kHuge), ScalarOf<int64_t>(1)}),
      Fails(kInvalid, HasSubstr("Requires ((limit - start) / delta) <= 9223372036854775807")));
  const auto few = Compute(
      node, {ScalarOf<int64_t>(kLeast), ScalarOf<int64_t>(kHuge), ScalarOf<int64_t>(kHuge)});
  ASSERT_TRUE(few.ok());
  EXPECT_THAT(ElementsOf<int64_t>(*few), ElementsAre(kLeast, -1, kHuge - 1));
  const auto down = Compute(
      node, {ScalarOf<int64_t>(kHuge), ScalarOf<int64_t>(kLeast), ScalarOf<int64_t>(kLeast)});
  ASSERT_TRUE(down.ok());
  EXPECT_THAT(ElementsOf<int64_t>(*down), ElementsAre(kHuge, -1));
}

TEST(Concat, StringsAlongTheLastAxis) {
  const auto output = Compute(
      NodeWriter("ConcatV2")
          .Type("T", DataType::kString)
          .Type("Tidx", DataType::kInt32)
          .Int("N", 2),
      {Strings({2, 1}, {"a", "b"}), Strings({2, 2}, {"c", "d", "e", "f"}), ScalarOf<int32_t>(-1)});
  ASSERT_TRUE(output.ok());
  EXPECT_THAT(output->strings(), ElementsAre("a", "c", "d", "b", "e", "f"));
}

TEST(Shape, DimensionThatInt32CannotHold) {
  // Empty, so that it needs no memory.
  const Tensor input = *Tensor::Allocate(DataType::kFloat, *Shape::Create({0, int64_t{1} << 31}));
  EXPECT_THAT(Compute(Floats("Shape").Type("out_type", DataType::kInt32), {input}),
              Fails(kInvalid, HasSubstr("but dim 1 is 2147483648")));
  const auto wide = Compute(Floats("Shape").Type("out_type", DataType::kInt64), {input});
  ASSERT_TRUE(wide.ok());
  EXPECT_THAT(ElementsOf<int64_t>(*wide), ElementsAre(0, int64_t{1} << 31));
}

}  // namespace
}  // namespace ferry::worker
