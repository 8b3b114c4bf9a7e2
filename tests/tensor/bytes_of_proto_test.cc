// SPDX-License-Identifier: Apache-2.0
// Sizes of tensors that are not made.
#include "tensor/bytes_of_proto.h"

#include <cstdint>
#include <initializer_list>
#include <string>

#include <gtest/gtest.h>

#include "tensor/tensor_proto.h"

namespace ferry {
namespace {

using tensorflow::TensorProto;

TensorProto Proto(tensorflow::DataType type, std::initializer_list<int64_t> dims) {
  TensorProto proto;
  proto.set_dtype(type);
  proto.mutable_tensor_shape();
  for (const int64_t dim : dims) proto.mutable_tensor_shape()->add_dim()->set_size(dim);
  return proto;
}

TEST(DecodedBytes, EqualTheTensorsBytesForAnyContent) {
  for (const auto type : {tensorflow::DT_BOOL, tensorflow::DT_HALF, tensorflow::DT_FLOAT,
                          tensorflow::DT_INT64, tensorflow::DT_COMPLEX128}) {
    for (const auto& proto : {Proto(type, {}), Proto(type, {3, 5}), Proto(type, {7, 0})}) {
      EXPECT_EQ(DecodedBytes(proto), TensorFromProto(proto)->bytes());
    }
  }
  TensorProto huge = Proto(tensorflow::DT_FLOAT, {int64_t{1} << 32});
  huge.add_float_val(1);
  EXPECT_EQ(DecodedBytes(huge), size_t{1} << 34);
}

TEST(DecodedBytes, StringsCountOncePerRepetition) {
  TensorProto proto = Proto(tensorflow::DT_STRING, {10});
  EXPECT_EQ(DecodedBytes(proto), 10 * sizeof(std::string));
  proto.add_string_val(std::string(7, 'a'));
  proto.add_string_val(std::string(1000, 'b'));
  EXPECT_EQ(DecodedBytes(proto), 10 * sizeof(std::string) + 7 + 9 * 1000);
  // More than there is room for does not count.
  *proto.mutable_tensor_shape()->mutable_dim(0) =
      Proto(tensorflow::DT_STRING, {1}).tensor_shape().dim(0);
  EXPECT_EQ(DecodedBytes(proto), sizeof(std::string) + 7);
}

TEST(DecodedBytes, DoNotOverflow) {
  EXPECT_EQ(DecodedBytes(Proto(tensorflow::DT_DOUBLE, {int64_t{1} << 62})), SIZE_MAX);
  // Zero, in either order.
  EXPECT_EQ(DecodedBytes(Proto(tensorflow::DT_DOUBLE, {int64_t{1} << 62, int64_t{1} << 62, 0})),
            0u);
  EXPECT_EQ(AddBytes(SIZE_MAX, 1), SIZE_MAX);
  EXPECT_EQ(AddBytes(1, 2), 3u);
}

TEST(DecodedBytes, RefusedMessagesCountNothing) {
  EXPECT_EQ(DecodedBytes(Proto(tensorflow::DT_VARIANT, {9})), 0u);
  EXPECT_EQ(DecodedBytes(Proto(tensorflow::DT_FLOAT, {-1})), 0u);
  const TensorProto uncountable = Proto(tensorflow::DT_FLOAT, {int64_t{1} << 32, int64_t{1} << 32});
  EXPECT_EQ(DecodedBytes(uncountable), 0u);
  EXPECT_EQ(TensorFromProto(uncountable).status().code(), absl::StatusCode::kInvalidArgument);
}

// The tensor is made with the dimensions that are present, so it takes their size.
TEST(DecodedBytes, UnknownRank_CountsTheDimensions) {
  TensorProto unknown = Proto(tensorflow::DT_FLOAT, {9});
  unknown.mutable_tensor_shape()->set_unknown_rank(true);
  EXPECT_EQ(DecodedBytes(unknown), 36u);
}

}  // namespace
}  // namespace ferry
