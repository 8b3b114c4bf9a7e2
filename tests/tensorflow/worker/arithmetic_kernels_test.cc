// SPDX-License-Identifier: Apache-2.0
// Kernels that compute: element by element, along dimensions, products of matrices.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "tests/tensorflow/worker/kernel_fixture.h"

namespace ferry::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

NodeWriter Of(const std::string& op, DataType type) { return NodeWriter(op).Type("T", type); }

template <typename T>
std::vector<T> ComputeTo(const NodeWriter& node, const std::vector<Tensor>& inputs) {
  const absl::StatusOr<Tensor> output = Compute(node, inputs);
  EXPECT_TRUE(output.ok()) << output.status();
  return output.ok() ? ElementsOf<T>(*output) : std::vector<T>();
}

// Overflow is undefined in the language, and wraps in TensorFlow.
TEST(Integers, OverflowWraps) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  EXPECT_THAT(ComputeTo<int32_t>(Of("AddV2", DataType::kInt32), {Ints({kMost}), Ints({1})}),
              ElementsAre(kLeast));
  EXPECT_THAT(ComputeTo<int32_t>(Of("Mul", DataType::kInt32), {Ints({kMost}), Ints({2})}),
              ElementsAre(-2));
  EXPECT_THAT(ComputeTo<int32_t>(Of("Neg", DataType::kInt32), {Ints({kLeast})}),
              ElementsAre(kLeast));
  EXPECT_THAT(ComputeTo<uint16_t>(Of("Mul", DataType::kUint16), {TensorOf<uint16_t>({1}, {65535}),
                                                                 TensorOf<uint16_t>({1}, {65535})}),
              ElementsAre(1));
  EXPECT_THAT(ComputeTo<int32_t>(Of("Sum", DataType::kInt32).Type("Tidx", DataType::kInt32),
                                 {Ints({kMost, 1}), Ints({0})}),
              ElementsAre(kLeast));
  EXPECT_THAT(ComputeTo<int32_t>(Of("Mean", DataType::kInt32).Type("Tidx", DataType::kInt32),
                                 {Ints({kMost, kMost}), Ints({0})}),
              ElementsAre(kMost));
  EXPECT_THAT(
      ComputeTo<int32_t>(Of("MatMul", DataType::kInt32),
                         {TensorOf<int32_t>({1, 1}, {kMost}), TensorOf<int32_t>({1, 1}, {2})}),
      ElementsAre(-2));
  EXPECT_THAT(
      ComputeTo<int32_t>(Of("AddN", DataType::kInt32).Int("N", 2), {Ints({kMost}), Ints({1})}),
      ElementsAre(kLeast));
}

TEST(Maximum, NanPropagates) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  for (const char* op : {"Maximum", "Minimum"}) {
    for (const auto& element :
         ComputeTo<float>(Of(op, DataType::kFloat),
                          {TensorOf<float>({2}, {kNone, 1}), TensorOf<float>({2}, {1, kNone})})) {
      EXPECT_TRUE(std::isnan(element)) << op;
    }
  }
  for (const char* op : {"Max", "Min"}) {
    EXPECT_TRUE(std::isnan(ComputeTo<float>(Of(op, DataType::kFloat).Type("Tidx", DataType::kInt32),
                                            {TensorOf<float>({3}, {1, kNone, 2}), Ints({0})})[0]));
  }
}

// The reference implementation: every element by its indices.
TEST(Broadcasting, CombinesMatchingElements) {
  std::mt19937 random(7);  // NOLINT(bugprone-random-generator-seed)
  for (int round = 0; round < 500; ++round) {
    const size_t rank = random() % 6;
    std::vector<int64_t> dims[2];
    std::vector<int64_t> out_dims(rank);
    for (size_t i = 0; i < rank; ++i) {
      const int64_t dim = static_cast<int64_t>(random() % 4);
      const int kind = static_cast<int>(random() % 4);
      dims[0].push_back(kind == 1 ? 1 : dim);
      dims[1].push_back(kind == 2 ? 1 : dim);
      out_dims[i] = kind == 1 ? dims[1][i] : dims[0][i];
    }
    // Dimensions of one at the front may be left out.
    while (!dims[1].empty() && dims[1][0] == 1 && random() % 2 == 0) dims[1].erase(dims[1].begin());
    Tensor inputs[2];
    for (int k = 0; k < 2; ++k) {
      std::vector<int64_t> elements(static_cast<size_t>(Shape::Create(dims[k])->element_count()));
      for (int64_t& element : elements) element = static_cast<int64_t>(random());
      inputs[k] = TensorOf<int64_t>(dims[k], elements);
    }
    const auto output = Compute(Of("Sub", DataType::kInt64), {inputs[0], inputs[1]});
    ASSERT_TRUE(output.ok()) << output.status();
    ASSERT_EQ(output->shape(), *Shape::Create(out_dims));
    for (int64_t at = 0; at < output->shape().element_count(); ++at) {
      int64_t values[2];
      for (int k = 0; k < 2; ++k) {
        int64_t rest = at;
        int64_t from = 0;
        int64_t stride = 1;
        for (size_t i = rank; i-- > 0;) {
          const int64_t index = rest % out_dims[i];
          rest /= out_dims[i];
          const size_t missing = rank - dims[k].size();
          if (i < missing) continue;
          if (dims[k][i - missing] != 1) from += index * stride;
          stride *= dims[k][i - missing];
        }
        values[k] = inputs[k].elements<int64_t>()[static_cast<size_t>(from)];
      }
      ASSERT_EQ(ElementsOf<int64_t>(*output)[static_cast<size_t>(at)], values[0] - values[1]);
    }
  }
}

TEST(Broadcasting, RefusesIncompatibleShapes) {
  EXPECT_THAT(Compute(Of("AddV2", DataType::kInt32), {Ints({1, 2}), Ints({1, 2, 3})}),
              Fails(kInvalid, "Incompatible shapes: [2] vs. [3]"));
}

// Two small tensors can broadcast to one that does not fit in memory.
TEST(Broadcasting, ResultLargerThanMemoryIsRefused) {
  constexpr int64_t kSide = 1 << 20;
  const Tensor row = *Tensor::Allocate(DataType::kInt8, *Shape::Create({kSide}));
  const Tensor column = *row.Reshape(*Shape::Create({kSide, 1}));
  EXPECT_THAT(Compute(Of("AddV2", DataType::kInt8), {row, column}),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("[1048576,1048576]")));
  KernelEnvironment environment;
  environment.max_tensor_bytes = 1000;
  const Tensor words = Strings({4}, std::vector<std::string>(4, std::string(100, 'x')));
  EXPECT_THAT(Compute(Of("Add", DataType::kString), {words, *words.Reshape(*Shape::Create({4, 1}))},
                      environment),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("max_tensor_bytes")));
}

TEST(Add, JoinsStrings) {
  const auto output =
      Compute(Of("Add", DataType::kString), {Strings({2}, {"a", "b"}), Strings({}, {"!"})});
  ASSERT_TRUE(output.ok());
  EXPECT_THAT(output->strings(), ElementsAre("a!", "b!"));
}

TEST(Allocation, UsesTheEnvironmentsAllocator) {
  KernelEnvironment environment;
  int calls = 0;
  environment.allocate = [&calls](size_t bytes) {
    ++calls;
    EXPECT_EQ(bytes, 8u);
    return AllocateHeapBuffer(bytes);
  };
  EXPECT_TRUE(Compute(Of("AddV2", DataType::kInt32), {Ints({1, 2}), Ints({3})}, environment).ok());
  EXPECT_EQ(calls, 1);
  environment.allocate = [](size_t) -> absl::StatusOr<std::shared_ptr<Buffer>> {
    return absl::ResourceExhaustedError("the arena is full");
  };
  EXPECT_THAT(Compute(Of("AddV2", DataType::kInt32), {Ints({1}), Ints({3})}, environment),
              Fails(absl::StatusCode::kResourceExhausted, HasSubstr("the arena is full")));
}

// Conversions that the language leaves undefined.
TEST(Cast, OutOfRangeIsTheLowestNumber) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor input = TensorOf<float>({5}, {kNone, kInfinity, -kInfinity, 1e20f, -1.75f});
  const auto to = [](DataType type) {
    return NodeWriter("Cast").Type("SrcT", DataType::kFloat).Type("DstT", type);
  };
  constexpr int32_t kLeast32 = std::numeric_limits<int32_t>::min();
  constexpr int64_t kLeast64 = std::numeric_limits<int64_t>::min();
  EXPECT_THAT(ComputeTo<int32_t>(to(DataType::kInt32), {input}),
              ElementsAre(kLeast32, kLeast32, kLeast32, kLeast32, -1));
  EXPECT_THAT(ComputeTo<int64_t>(to(DataType::kInt64), {input}),
              ElementsAre(kLeast64, kLeast64, kLeast64, kLeast64, -1));
  EXPECT_THAT(ComputeTo<uint64_t>(to(DataType::kUint64), {TensorOf<float>({2}, {3e18f, 1.5e19f})}),
              ElementsAre(static_cast<uint64_t>(3e18f), static_cast<uint64_t>(1.5e19f)));
  const auto truth = Compute(to(DataType::kBool), {TensorOf<float>({3}, {0, -0.f, kNone})});
  ASSERT_TRUE(truth.ok());
  EXPECT_THAT(std::vector<uint8_t>(static_cast<const uint8_t*>(truth->data()),
                                   static_cast<const uint8_t*>(truth->data()) + 3),
              ElementsAre(0, 0, 1));
}

TEST(Cast, ToTheSameTypeIsAView) {
  const Tensor input = Strings({1}, {"a"});
  const auto output = Compute(
      NodeWriter("Cast").Type("SrcT", DataType::kString).Type("DstT", DataType::kString), {input});
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->buffer(), input.buffer());
  EXPECT_THAT(
      MakeCpuKernel(
          NodeWriter("Cast").Type("SrcT", DataType::kString).Type("DstT", DataType::kFloat)),
      Fails(absl::StatusCode::kUnimplemented, "Cast string to float is not supported"));
}

TEST(Cast, TruncatesOnRequest) {
  // Halfway between two bfloat16, and a bit more.
  const Tensor input = TensorOf<float>({1}, {1.00590f});
  for (const bool truncates : {false, true}) {
    const auto output = ComputeTo<Bfloat16>(NodeWriter("Cast")
                                                .Type("SrcT", DataType::kFloat)
                                                .Type("DstT", DataType::kBfloat16)
                                                .Bool("Truncate", truncates),
                                            {input});
    ASSERT_EQ(output.size(), 1u);
    EXPECT_EQ(static_cast<float>(output[0]), truncates ? 1.f : 1.0078125f);
  }
}

// Added one after the other, a million small floats would lose a tenth of their sum.
TEST(Sum, ManyElementsAreExact) {
  for (const bool is_row : {true, false}) {
    std::vector<int64_t> dims = {4'000'000, 1};
    if (!is_row) dims = {2'000'000, 2};
    const Tensor input = TensorOf<float>(dims, std::vector<float>(4'000'000, 0.1f));
    const auto sums = ComputeTo<float>(Of("Sum", DataType::kFloat).Type("Tidx", DataType::kInt32),
                                       {input, Ints({0})});
    for (const float sum : sums) {
      EXPECT_NEAR(sum, is_row ? 400'000 : 200'000, 1);
    }
  }
}

TEST(Reductions, EmptyInput) {
  const Tensor empty = *Tensor::Allocate(DataType::kFloat, *Shape::Create({0, 2}));
  const auto reduce = [&empty](const char* op) {
    return ComputeTo<float>(Of(op, DataType::kFloat).Type("Tidx", DataType::kInt32),
                            {empty, Ints({0})});
  };
  EXPECT_THAT(reduce("Sum"), ElementsAre(0, 0));
  EXPECT_TRUE(std::isnan(reduce("Mean")[0]));
  EXPECT_EQ(reduce("Max")[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(reduce("Min")[0], std::numeric_limits<float>::infinity());
}

// A row is processed in many places at once, and its remainder afterwards.
TEST(Reductions, FindTheLargestAndNansAnywhere) {
  constexpr size_t kCount = 77;
  const auto reduce = [](const char* op, const std::vector<float>& row) {
    return ComputeTo<float>(
        Of(op, DataType::kFloat).Type("Tidx", DataType::kInt32),
        {TensorOf<float>({static_cast<int64_t>(row.size())}, row), Ints({0})})[0];
  };
  for (size_t at = 0; at < kCount; ++at) {
    std::vector<float> row(kCount, -1);
    row[at] = 2;
    EXPECT_EQ(reduce("Max", row), 2) << at;
    row[at] = -3;
    EXPECT_EQ(reduce("Min", row), -3) << at;
    row[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(reduce("Max", row))) << at;
    EXPECT_TRUE(std::isnan(reduce("Min", row))) << at;
  }
}

// A compiler has lost some of these.
TEST(Reductions, MeanOf16ByteElements) {
  EXPECT_THAT(ComputeTo<int8_t>(Of("Mean", DataType::kInt8).Type("Tidx", DataType::kInt32),
                                {TensorOf<int8_t>({16}, {5, 7, 5, 1, 1, 127, -128, 9, -3, 127, 5,
                                                         -128, 127, 126, 126, -1}),
                                 Ints({0})}),
              ElementsAre(25));
}

TEST(Reductions, InvalidAxes) {
  const NodeWriter node = Of("Sum", DataType::kInt32).Type("Tidx", DataType::kInt32);
  EXPECT_THAT(Compute(node, {Ints({1}), Ints({1})}),
              Fails(kInvalid, "Invalid reduction dimension (1 for input with 1 dimension(s)"));
  EXPECT_THAT(Compute(node, {Ints({1}), Ints({0, -1})}),
              Fails(kInvalid, HasSubstr("Axes contains duplicate dimension: 0")));
}

TEST(MatMul, AgreesWithThreeLoops) {
  std::mt19937 random(11);  // NOLINT(bugprone-random-generator-seed)
  for (int round = 0; round < 200; ++round) {
    const int64_t rows = static_cast<int64_t>(random() % 12);
    const int64_t inner = static_cast<int64_t>(random() % 12);
    const int64_t columns = static_cast<int64_t>(random() % 12);
    const bool turns_x = random() % 2 == 0;
    const bool turns_y = random() % 2 == 0;
    std::vector<int64_t> x(static_cast<size_t>(rows * inner));
    std::vector<int64_t> y(static_cast<size_t>(inner * columns));
    for (int64_t& element : x) element = static_cast<int64_t>(random());
    for (int64_t& element : y) element = static_cast<int64_t>(random());
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        uint64_t sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
          sum += static_cast<uint64_t>(
                     x[static_cast<size_t>(turns_x ? k * rows + i : i * inner + k)]) *
                 static_cast<uint64_t>(
                     y[static_cast<size_t>(turns_y ? j * inner + k : k * columns + j)]);
        }
        expected.push_back(static_cast<int64_t>(sum));
      }
    }
    const std::vector<int64_t> x_dims =
        turns_x ? std::vector<int64_t>{inner, rows} : std::vector<int64_t>{rows, inner};
    const std::vector<int64_t> y_dims =
        turns_y ? std::vector<int64_t>{columns, inner} : std::vector<int64_t>{inner, columns};
    EXPECT_EQ(ComputeTo<int64_t>(Of("MatMul", DataType::kInt64)
                                     .Bool("transpose_a", turns_x)
                                     .Bool("transpose_b", turns_y),
                                 {TensorOf<int64_t>(x_dims, x), TensorOf<int64_t>(y_dims, y)}),
              expected);
  }
}

}  // namespace
}  // namespace ferry::worker
