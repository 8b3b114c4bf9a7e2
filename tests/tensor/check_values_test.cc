// SPDX-License-Identifier: Apache-2.0
// Bytes that are not valid booleans, at every place in a tensor.
#include "tensor/check_values.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "tensor/tensor_proto.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

Tensor Booleans(const std::vector<uint8_t>& bytes) {
  Tensor tensor =
      *Tensor::Allocate(DataType::kBool, *Shape::Create({static_cast<int64_t>(bytes.size())}));
  if (!bytes.empty()) std::memcpy(tensor.mutable_data(), bytes.data(), bytes.size());
  return tensor;
}

tensorflow::TensorProto ProtoOf(const Tensor& tensor) { return *TensorToProto(tensor); }

// Each length and each offset: blocks, words and single bytes have loops of their own.
TEST(CheckValues, EveryByteOfEveryLength_IsChecked) {
  for (size_t count = 0; count < 3300; count += count < 40 ? 1 : 97) {
    std::vector<uint8_t> bytes(count);
    for (size_t i = 0; i < count; ++i) bytes[i] = i % 3 == 0;
    EXPECT_EQ(FindNonBoolean(bytes.data(), count), std::nullopt) << count;
    for (size_t at = 0; at < count; ++at) {
      const uint8_t was = bytes[at];
      bytes[at] = at % 2 == 0 ? 2 : 0xff;
      EXPECT_EQ(FindNonBoolean(bytes.data(), count), at) << count;
      bytes[at] = was;
    }
  }
  EXPECT_EQ(FindNonBoolean(nullptr, 0), std::nullopt);
}

// The copy has the same loops. It must write neither before nor behind its range.
TEST(CopyValues, EveryByteOfEveryLength_IsCopiedAndChecked) {
  const auto describe = [] { return std::string("a tensor"); };
  for (size_t count = 0; count < 3300; count += count < 40 ? 1 : 97) {
    std::vector<uint8_t> bytes(count);
    for (size_t i = 0; i < count; ++i) bytes[i] = i % 3 == 0;
    for (const size_t shift : {0, 1}) {
      std::vector<uint8_t> copy(count + 2, 0xee);
      EXPECT_TRUE(
          CopyValues(DataType::kBool, bytes.data(), count, copy.data() + shift, describe).ok());
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), copy.begin() + shift)) << count;
      EXPECT_EQ(copy[count + shift], 0xee) << count;
      EXPECT_TRUE(shift == 0 || copy[0] == 0xee) << count;
    }
    std::vector<uint8_t> copy(count);
    for (size_t at = 0; at < count; ++at) {
      const uint8_t was = bytes[at];
      bytes[at] = at % 2 == 0 ? 2 : 0xff;
      const absl::Status status =
          CopyValues(DataType::kBool, bytes.data(), count, copy.data(), describe);
      EXPECT_EQ(status.message(), absl::StrCat("element ", at, " of a tensor is ", bytes[at],
                                               ", and a boolean is 0 or 1"));
      bytes[at] = was;
    }
  }
  EXPECT_TRUE(CopyValues(DataType::kBool, nullptr, 0, nullptr, describe).ok());
}

TEST(CopyValues, OtherTypes_AreCopiedWithoutACheck) {
  const std::vector<uint8_t> bytes(1500, 0xff);
  std::vector<uint8_t> copy(1500);
  EXPECT_TRUE(CopyValues(DataType::kUint8, bytes.data(), bytes.size(), copy.data(), [] {
                return std::string();
              }).ok());
  EXPECT_EQ(copy, bytes);
}

TEST(CheckValues, EveryValueAboveOne_IsIllegal) {
  for (int value = 0; value < 256; ++value) {
    const auto byte = static_cast<uint8_t>(value);
    EXPECT_EQ(FindNonBoolean(&byte, 1).has_value(), value > 1) << value;
  }
}

TEST(CheckValues, SeveralIllegalBytes_TheFirstIsNamed) {
  std::vector<uint8_t> bytes(1000, 1);
  bytes[700] = 3;
  bytes[300] = 255;
  const absl::Status status = CheckValues(Booleans(bytes));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "element 300 of bool[1000] is 255, and a boolean is 0 or 1");
}

// At an odd address, as views of an arena's or a file's bytes may be.
TEST(CheckValues, AnyAlignment_IsAccepted) {
  std::vector<uint8_t> bytes(2000, 0);
  bytes[1500] = 2;
  for (size_t from = 0; from < 40; ++from) {
    EXPECT_EQ(FindNonBoolean(bytes.data() + from, bytes.size() - from), 1500 - from);
  }
}

TEST(CheckValues, OtherTypes_HaveNoIllegalBits) {
  for (int number = 1; number < 64; ++number) {
    const std::optional<DataType> dtype = DataTypeOfNumber(number);
    if (!dtype.has_value() || !IsFixedSize(*dtype) || *dtype == DataType::kBool) continue;
    Tensor tensor = *Tensor::Allocate(*dtype, *Shape::Create({40}));
    std::memset(tensor.mutable_data(), 0xff, tensor.bytes());
    EXPECT_TRUE(CheckValues(tensor).ok()) << *dtype;
  }
  EXPECT_TRUE(CheckValues(*Tensor::OfStrings(*Shape::Create({1}), {"\xff"})).ok());
  EXPECT_TRUE(CheckValues(Tensor()).ok());
}

TEST(CheckValues, OfATensorProto_IsRefusedAsByTensorFlow) {
  const tensorflow::TensorProto good = ProtoOf(Booleans({0, 1, 1}));
  EXPECT_TRUE(CheckTensorProto(good).ok());
  EXPECT_TRUE(TensorFromProto(good).ok());
  tensorflow::TensorProto bad = good;
  bad.mutable_tensor_content()->at(1) = 2;
  for (const absl::Status& status : {CheckTensorProto(bad), TensorFromProto(bad).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("element 1 of bool[3] is 2"));
  }
  // Without elements the content is not checked.
  bad.mutable_tensor_shape()->mutable_dim(0)->set_size(0);
  EXPECT_TRUE(CheckTensorProto(bad).ok());
  EXPECT_TRUE(TensorFromProto(bad).ok());
}

}  // namespace
}  // namespace ferry
