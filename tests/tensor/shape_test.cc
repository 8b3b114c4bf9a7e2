// SPDX-License-Identifier: Apache-2.0
// Shapes that are too large, negative, or of too many dimensions.
#include "tensor/shape.h"

#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Shape, IsAScalarByDefault) {
  EXPECT_EQ(Shape().rank(), 0);
  EXPECT_EQ(Shape().element_count(), 1);
  EXPECT_EQ(ToString(Shape()), "[]");
}

TEST(Shape, CountsItsElements) {
  const Shape shape = *Shape::Create({2, 3, 5});
  EXPECT_EQ(shape.element_count(), 30);
  EXPECT_THAT(shape.dims(), ElementsAre(2, 3, 5));
  EXPECT_EQ(ToString(shape), "[2,3,5]");
  EXPECT_EQ(Shape::Create({7, 0, 9})->element_count(), 0);
}

TEST(Shape, RefusesNegativeExtents) {
  const absl::Status status = Shape::Create({2, -1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("[2,-1]"));
}

TEST(Shape, RefusesUncountableSizes) {
  EXPECT_TRUE(Shape::Create({kMax}).ok());
  EXPECT_FALSE(Shape::Create({kMax, 2}).ok());
  EXPECT_FALSE(Shape::Create({int64_t{1} << 32, int64_t{1} << 31}).ok());
  // It would be empty, but a reshape of it could not be counted.
  EXPECT_FALSE(Shape::Create({0, kMax, 2}).ok());
}

TEST(Shape, HasAtMost254Dimensions) {
  EXPECT_TRUE(Shape::Create(std::vector<int64_t>(254, 1)).ok());
  EXPECT_FALSE(Shape::Create(std::vector<int64_t>(255, 1)).ok());
}

}  // namespace
}  // namespace ferry
