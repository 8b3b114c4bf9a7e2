// SPDX-License-Identifier: Apache-2.0
// Views of buffers: shared memory and bounds.
#include "tensor/tensor.h"

#include <array>
#include <limits>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kInvalidArgument;

// int32[4,2]: 0, 1, ..., 7.
Tensor Counting() {
  Tensor tensor = *Tensor::Allocate(DataType::kInt32, *Shape::Create({4, 2}));
  for (int i = 0; i < 8; ++i) static_cast<int32_t*>(tensor.mutable_data())[i] = i;
  return tensor;
}

TEST(Tensor, IsEmptyByDefault) {
  EXPECT_FALSE(Tensor().is_valid());
  EXPECT_EQ(ToString(Tensor()), "no tensor");
  EXPECT_TRUE(IsEqual(Tensor(), Tensor()));
  EXPECT_FALSE(IsEqual(Tensor(), Counting()));
}

TEST(Tensor, CopiesShareTheBuffer) {
  const Tensor tensor = Counting();
  const Tensor copy = tensor;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(copy.data(), tensor.data());
  EXPECT_EQ(tensor.buffer().use_count(), 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % kBufferAlignment, 0u);
}

TEST(Tensor, SliceIsAViewOfItsRows) {
  const Tensor tensor = Counting();
  const Tensor slice = *tensor.Slice(1, 2);
  EXPECT_THAT(slice.elements<int32_t>(), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(slice.buffer(), tensor.buffer());
  EXPECT_EQ(slice.offset_bytes(), 8u);
  EXPECT_THAT(slice.Slice(1, 1)->elements<int32_t>(), ElementsAre(4, 5));
  EXPECT_EQ(tensor.Slice(4, 0)->bytes(), 0u);
}

TEST(Tensor, SliceMayNotExceedTheTensor) {
  const Tensor tensor = Counting();
  for (const auto& [first, count] : std::array<std::pair<int64_t, int64_t>, 4>{
           {{-1, 1}, {0, 5}, {5, 0}, {1, std::numeric_limits<int64_t>::max()}}}) {
    EXPECT_EQ(tensor.Slice(first, count).status().code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(Tensor::Allocate(DataType::kInt8, Shape())->Slice(0, 1).status().code(), kRefused);
}

TEST(Tensor, ReshapesWithoutACopy) {
  const Tensor tensor = Counting();
  const Tensor flat = *tensor.Reshape(*Shape::Create({8}));
  EXPECT_EQ(flat.data(), tensor.data());
  EXPECT_EQ(ToString(flat), "int32[8]");
  EXPECT_EQ(tensor.Reshape(*Shape::Create({9})).status().code(), kRefused);
}

TEST(Tensor, StaysWithinItsBuffer) {
  const std::shared_ptr<Buffer> buffer = *AllocateHeapBuffer(16);
  const Shape four = *Shape::Create({4});
  EXPECT_TRUE(Tensor::Create(DataType::kFloat, four, buffer).ok());
  const absl::Status past_the_end = Tensor::Create(DataType::kFloat, four, buffer, 4).status();
  EXPECT_EQ(past_the_end.code(), kRefused);
  EXPECT_THAT(past_the_end.message(), HasSubstr("the buffer has 16"));
  EXPECT_EQ(Tensor::Create(DataType::kFloat, Shape(), buffer, 2).status().code(), kRefused);
  EXPECT_EQ(Tensor::Create(DataType::kInt8, Shape(), buffer, ~size_t{0}).status().code(), kRefused);
  EXPECT_EQ(Tensor::Create(DataType::kInt8, Shape(), nullptr).status().code(), kRefused);
  EXPECT_EQ(Tensor::Create(DataType::kString, Shape(), buffer).status().code(), kRefused);
}

TEST(Tensor, RefusesSizesThatOverflow) {
  const Shape huge = *Shape::Create({std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(Tensor::Allocate(DataType::kDouble, huge).status().code(), kRefused);
  EXPECT_EQ(Tensor::Allocate(DataType::kInt8, *Shape::Create({int64_t{1} << 60})).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(Tensor, MayBeEmpty) {
  const Tensor empty = *Tensor::Allocate(DataType::kFloat, *Shape::Create({0, 3}));
  EXPECT_TRUE(empty.is_valid());
  EXPECT_EQ(empty.bytes(), 0u);
  EXPECT_TRUE(IsEqual(empty, *Tensor::Allocate(DataType::kFloat, *Shape::Create({0, 3}))));
}

TEST(Tensor, HoldsStrings) {
  const Tensor tensor = *Tensor::OfStrings(*Shape::Create({2}), {"", std::string("a\0b", 3)});
  EXPECT_EQ(tensor.bytes(), 3u);
  EXPECT_EQ(tensor.strings()[1].size(), 3u);
  EXPECT_TRUE(IsEqual(tensor, tensor));
  EXPECT_EQ(Tensor::OfStrings(Shape(), {}).status().code(), kRefused);
}

// The owner of foreign memory is notified once, when the last view is destroyed, and not before.
TEST(Tensor, ReleasesForeignMemoryWithTheLastView) {
  std::array<float, 4> memory = {1, 2, 3, 4};
  int released = 0;
  {
    Tensor slice;
    {
      const Tensor tensor = *Tensor::Create(
          DataType::kFloat, *Shape::Create({4}),
          WrapForeignBuffer(memory.data(), sizeof(memory), [&released] { ++released; }));
      slice = *tensor.Slice(3, 1);
    }
    EXPECT_EQ(released, 0);
    EXPECT_THAT(slice.elements<float>(), ElementsAre(4));
  }
  EXPECT_EQ(released, 1);
}

// To the last byte, at an offset, and nothing beyond it.
TEST(Tensor, EndsWithItsBuffer_OrBeforeIt) {
  const std::shared_ptr<Buffer> buffer = *AllocateHeapBuffer(16);
  const auto create = [&buffer](int64_t elements, size_t offset) {
    return Tensor::Create(DataType::kFloat, *Shape::Create({elements}), buffer, offset).status();
  };
  EXPECT_TRUE(create(3, 4).ok());
  EXPECT_TRUE(create(1, 12).ok());
  EXPECT_EQ(create(2, 12).code(), kRefused);
  EXPECT_TRUE(create(0, 16).ok());
  EXPECT_EQ(create(1, 16).code(), kRefused);
  EXPECT_EQ(create(0, 20).code(), kRefused);
  // Rows up to the last, and zero rows.
  const Tensor tensor = Counting();
  EXPECT_THAT(tensor.Slice(3, 1)->elements<int32_t>(), ElementsAre(6, 7));
  EXPECT_EQ(tensor.Slice(3, 2).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(tensor.Slice(0, 4)->bytes(), tensor.bytes());
  EXPECT_EQ(tensor.Slice(2, -1).status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace ferry
