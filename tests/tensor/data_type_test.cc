// SPDX-License-Identifier: Apache-2.0
// The table of types, against TensorFlow's numbers and sizes.
#include "tensor/data_type.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(DataType, HasTheSizesOfTensorFlow) {
  EXPECT_EQ(ElementBytes(DataType::kFloat), 4u);
  EXPECT_EQ(ElementBytes(DataType::kBfloat16), 2u);
  EXPECT_EQ(ElementBytes(DataType::kComplex128), 16u);
  EXPECT_EQ(ElementBytes(DataType::kBool), 1u);
  EXPECT_EQ(ElementBytes(DataType::kFloat8E4m3fn), 1u);
  EXPECT_EQ(ElementBytes(DataType::kInt4), 1u);
  EXPECT_EQ(ElementBytes(DataType::kString), 0u);
  EXPECT_FALSE(IsFixedSize(DataType::kString));
  EXPECT_FALSE(IsFixedSize(DataType::kInvalid));
}

TEST(DataType, IsFoundByNumberAndName) {
  int count = 0;
  for (int number = 0; number < 300; ++number) {
    const std::optional<DataType> type = DataTypeOfNumber(number);
    if (!type.has_value()) continue;
    ++count;
    EXPECT_EQ(static_cast<int>(*type), number);
    EXPECT_EQ(ParseDataType(DataTypeName(*type)), type);
  }
  EXPECT_EQ(count, 31);
}

// Resources, variants and reference types (value + 100) have no content to send.
TEST(DataType, RefusesTypesThatCannotBeSent) {
  for (const int number : {-1, 0, 20, 21, 34, 101, 256 + 1}) {
    EXPECT_EQ(DataTypeOfNumber(number), std::nullopt) << number;
  }
  EXPECT_EQ(ParseDataType("resource"), std::nullopt);
  EXPECT_EQ(ParseDataType("invalid"), std::nullopt);
}

}  // namespace
}  // namespace ferry
