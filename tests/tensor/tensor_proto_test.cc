// SPDX-License-Identifier: Apache-2.0
// The rules of TensorProto, and messages that lie about their size.
#include "tensor/tensor_proto.h"

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

using tensorflow::TensorProto;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

TensorProto Proto(DataType type, std::initializer_list<int64_t> dims) {
  TensorProto proto;
  proto.set_dtype(static_cast<tensorflow::DataType>(type));
  proto.mutable_tensor_shape();
  for (const int64_t dim : dims) proto.mutable_tensor_shape()->add_dim()->set_size(dim);
  return proto;
}

TEST(TensorProto, ContentIsTheElements) {
  TensorProto proto = Proto(DataType::kInt16, {2});
  proto.set_tensor_content(std::string("\x01\x00\xff\xff", 4));
  EXPECT_THAT(TensorFromProto(proto)->elements<int16_t>(), ElementsAre(1, -1));
  // Values beside it do not count.
  proto.add_int_val(7);
  EXPECT_THAT(TensorFromProto(proto)->elements<int16_t>(), ElementsAre(1, -1));
  for (const size_t bytes : {1u, 3u, 5u}) {
    proto.set_tensor_content(std::string(bytes, 'x'));
    EXPECT_EQ(TensorFromProto(proto).status().code(), kInvalid);
  }
}

TEST(TensorProto, LastValueStandsForMissingOnes) {
  TensorProto proto = Proto(DataType::kFloat, {4});
  EXPECT_THAT(TensorFromProto(proto)->elements<float>(), ElementsAre(0, 0, 0, 0));
  proto.add_float_val(1.5f);
  proto.add_float_val(2.5f);
  EXPECT_THAT(TensorFromProto(proto)->elements<float>(), ElementsAre(1.5f, 2.5f, 2.5f, 2.5f));
  for (int i = 0; i < 10; ++i) proto.add_float_val(9);
  EXPECT_THAT(TensorFromProto(proto)->elements<float>(), ElementsAre(1.5f, 2.5f, 9, 9));
}

TEST(TensorProto, EachTypeHasItsField) {
  const auto first = [](DataType type, auto add) {
    TensorProto proto = Proto(type, {1});
    add(proto);
    const Tensor tensor = *TensorFromProto(proto);
    int64_t bits = 0;
    std::memcpy(&bits, tensor.data(), std::min<size_t>(tensor.bytes(), 8));
    return bits;
  };
  const auto of_int = [](TensorProto& proto) { proto.add_int_val(-2); };
  EXPECT_EQ(first(DataType::kInt8, of_int), 0xfe);
  EXPECT_EQ(first(DataType::kUint8, of_int), 0xfe);
  EXPECT_EQ(first(DataType::kUint16, of_int), 0xfffe);
  EXPECT_EQ(first(DataType::kQint32, of_int), 0xfffffffe);
  EXPECT_EQ(first(DataType::kInt4, of_int), 0xfe);
  EXPECT_EQ(first(DataType::kHalf, [](TensorProto& p) { p.add_half_val(0x13c00); }), 0x3c00);
  EXPECT_EQ(first(DataType::kBfloat16, [](TensorProto& p) { p.add_half_val(0x3f80); }), 0x3f80);
  EXPECT_EQ(first(DataType::kBool, [](TensorProto& p) { p.add_bool_val(true); }), 1);
  EXPECT_EQ(first(DataType::kInt64, [](TensorProto& p) { p.add_int64_val(-5); }), -5);
  EXPECT_EQ(first(DataType::kUint32, [](TensorProto& p) { p.add_uint32_val(~0u); }), 0xffffffff);
  EXPECT_EQ(first(DataType::kUint64, [](TensorProto& p) { p.add_uint64_val(77); }), 77);
  EXPECT_EQ(first(DataType::kFloat8E5m2, [](TensorProto& p) { p.set_float8_val("\x3c"); }), 0x3c);
}

TEST(TensorProto, ComplexValuesArePairs) {
  TensorProto proto = Proto(DataType::kComplex64, {3});
  for (const float value : {1.f, 2.f, 3.f, 4.f, 5.f}) proto.add_scomplex_val(value);
  const Tensor tensor = *TensorFromProto(proto);
  const auto* parts = static_cast<const float*>(tensor.data());
  EXPECT_THAT(std::vector<float>(parts, parts + 6), ElementsAre(1, 2, 3, 4, 3, 4));
}

TEST(TensorProto, StringsAreAcceptedInBothForms) {
  TensorProto values = Proto(DataType::kString, {3});
  EXPECT_THAT(TensorFromProto(values)->strings(), ElementsAre("", "", ""));
  values.add_string_val("a");
  values.add_string_val("bc");
  EXPECT_THAT(TensorFromProto(values)->strings(), ElementsAre("a", "bc", "bc"));
  TensorProto content = Proto(DataType::kString, {3});
  content.set_tensor_content(std::string("\x01\x00\x02xyz", 6));
  EXPECT_THAT(TensorFromProto(content)->strings(), ElementsAre("x", "", "yz"));
  // Cut off, left over, and lengths that are not there.
  for (const std::string& bad :
       {std::string("\x01\x00\x02xy", 5), std::string("\x01\x00\x02xyzz", 7),
        std::string("\x01", 1), std::string("\xff\xff\xff\xff\x0f\x00\x00", 7),
        std::string("\x80\x80", 2)}) {
    content.set_tensor_content(bad);
    EXPECT_EQ(TensorFromProto(content).status().code(), kInvalid);
  }
}

TEST(TensorProto, RefusesInvalidTypesAndShapes) {
  for (const int type : {0, 20, 21, 34, 101, 119, -1, 1 << 20}) {
    TensorProto proto = Proto(DataType::kFloat, {1});
    proto.set_dtype(static_cast<tensorflow::DataType>(type));
    EXPECT_EQ(TensorFromProto(proto).status().code(), kInvalid) << type;
  }
  EXPECT_EQ(TensorFromProto(Proto(DataType::kFloat, {-1})).status().code(), kInvalid);
  EXPECT_EQ(TensorFromProto(Proto(DataType::kFloat, {INT64_MAX, 2})).status().code(), kInvalid);
}

// The expected results were observed on a server of TensorFlow 2.15.1 (tests/interop).
TEST(TensorProto, OddShapes_AreAcceptedAndRefusedAsByTensorFlow) {
  const auto float_of = [](const std::vector<int64_t>& dims, bool is_unknown) {
    TensorProto proto = Proto(DataType::kFloat, {});
    for (const int64_t dim : dims) proto.mutable_tensor_shape()->add_dim()->set_size(dim);
    proto.mutable_tensor_shape()->set_unknown_rank(is_unknown);
    proto.add_float_val(3);
    return proto;
  };
  // The dimensions count, even with `unknown_rank`.
  for (const auto& [dims, text] : {std::pair<std::vector<int64_t>, const char*>{{}, "float[]"},
                                   {{2}, "float[2]"},
                                   {{0, 3}, "float[0,3]"}}) {
    const TensorProto proto = float_of(dims, true);
    EXPECT_TRUE(CheckTensorProto(proto).ok()) << text;
    const auto tensor = TensorFromProto(proto);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(ToString(*tensor), text);
    for (const float value : tensor->elements<float>()) EXPECT_EQ(value, 3);
  }
  for (const bool is_unknown : {false, true}) {
    for (const auto dims : {std::initializer_list<int64_t>{-1},
                            {-2},
                            {0, -1},
                            {-1, 0},
                            {int64_t{1} << 32, int64_t{1} << 32}}) {
      const TensorProto proto = float_of(dims, is_unknown);
      EXPECT_EQ(CheckTensorProto(proto).code(), kInvalid);
      EXPECT_EQ(TensorFromProto(proto).status().code(), kInvalid);
    }
  }
  TensorProto deep = float_of({}, false);
  for (int i = 0; i < 254; ++i) deep.mutable_tensor_shape()->add_dim()->set_size(1);
  EXPECT_TRUE(TensorFromProto(deep).ok());
  deep.mutable_tensor_shape()->add_dim()->set_size(1);
  EXPECT_EQ(TensorFromProto(deep).status().code(), kInvalid);
}

// Content of a tensor without elements is ignored, as in TensorFlow.
TEST(TensorProto, ContentOfAnEmptyTensor_IsIgnored) {
  for (const DataType dtype : {DataType::kFloat, DataType::kBool, DataType::kString}) {
    TensorProto proto = Proto(dtype, {0});
    proto.set_tensor_content("\x7f?");
    EXPECT_TRUE(CheckTensorProto(proto).ok()) << dtype;
    EXPECT_TRUE(TensorFromProto(proto).ok()) << dtype;
  }
}

// The check must agree with the decoder: for any bytes of strings both succeed or both fail.
TEST(TensorProto, CheckOfStrings_AgreesWithTheResult) {
  uint64_t state = 7;
  int made = 0;
  for (int i = 0; i < 20'000; ++i) {
    TensorProto proto = Proto(DataType::kString, {static_cast<int64_t>(i % 4)});
    std::string content;
    for (int k = 0; k < i % 9; ++k) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto random = static_cast<uint8_t>(state >> 56);
      content.push_back(static_cast<char>(random % 3 == 0 ? 0x80 | random : random % 5));
    }
    proto.set_tensor_content(content);
    const bool can = TensorFromProto(proto).ok();
    EXPECT_EQ(CheckTensorProto(proto).ok(), can) << i;
    made += can ? 1 : 0;
  }
  EXPECT_GT(made, 100);
}

// Lengths that wrap around when they are added up, or when they are cut to 32 bits.
TEST(TensorProto, OverflowingLengthsOfStrings_AreRefused) {
  const std::string most(9, '\xff');
  for (const std::string& length :
       {most + "\x01", std::string("\x80\x80\x80\x80\x10"), std::string("\xff\xff\xff\xff\x0f")}) {
    TensorProto proto = Proto(DataType::kString, {2});
    proto.set_tensor_content(length + std::string(1, '\x01') + "a");
    EXPECT_EQ(TensorFromProto(proto).status().code(), kInvalid);
    EXPECT_EQ(CheckTensorProto(proto).code(), kInvalid);
  }
}

// Quantised types, the small floats and complex numbers have no illegal bits, but lengths.
TEST(TensorProto, ContentThatIsNotOfWholeElements_IsRefused) {
  for (int number = 1; number < 64; ++number) {
    const std::optional<DataType> dtype = DataTypeOfNumber(number);
    if (!dtype.has_value() || !IsFixedSize(*dtype)) continue;
    TensorProto proto = Proto(*dtype, {3});
    const size_t bytes = 3 * ElementBytes(*dtype);
    for (const size_t wrong : {bytes - 1, bytes + 1, bytes / 3, bytes * 2}) {
      proto.set_tensor_content(std::string(wrong, '\1'));
      EXPECT_EQ(TensorFromProto(proto).status().code(), kInvalid) << *dtype << " " << wrong;
      EXPECT_EQ(CheckTensorProto(proto).code(), kInvalid) << *dtype << " " << wrong;
    }
    proto.set_tensor_content(std::string(bytes, '\1'));
    EXPECT_TRUE(TensorFromProto(proto).ok()) << *dtype;
    EXPECT_TRUE(CheckTensorProto(proto).ok()) << *dtype;
  }
}

// A few bytes on the wire must not take the machine's memory.
TEST(TensorProto, SmallMessageCannotStandForTerabytes) {
  EXPECT_EQ(TensorFromProto(Proto(DataType::kInt8, {1 << 20, 1 << 20})).status().code(),
            kExhausted);
  EXPECT_EQ(TensorFromProto(Proto(DataType::kString, {1 << 20, 1 << 20})).status().code(),
            kExhausted);
  TensorProto strings = Proto(DataType::kString, {1 << 20});
  strings.add_string_val(std::string(1 << 20, 's'));
  EXPECT_EQ(TensorFromProto(strings).status().code(), kExhausted);
  const absl::Status small = TensorFromProto(Proto(DataType::kInt8, {101}), 100).status();
  EXPECT_EQ(small.code(), kExhausted);
  EXPECT_THAT(small.message(), HasSubstr("int8[101] has 101 bytes, over the limit of 100"));
}

TEST(TensorProto, EveryTypeRoundTrips) {
  for (int number = 1; number < 34; ++number) {
    const std::optional<DataType> type = DataTypeOfNumber(number);
    if (!type.has_value() || !IsFixedSize(*type)) continue;
    for (const int64_t count : {0, 1, 1023, 1024, 1025}) {
      Tensor tensor = *Tensor::Allocate(*type, *Shape::Create({count}));
      for (size_t i = 0; i < tensor.bytes(); ++i) {
        const size_t value = *type == DataType::kBool ? i % 3 % 2 : i * 7 + 1;
        static_cast<uint8_t*>(tensor.mutable_data())[i] = static_cast<uint8_t>(value);
      }
      TensorProto parsed;
      ASSERT_TRUE(parsed.ParseFromString(TensorToProto(tensor)->SerializeAsString()));
      EXPECT_TRUE(IsEqual(*TensorFromProto(parsed), tensor)) << *type << " " << count;
    }
  }
  const Tensor strings =
      *Tensor::OfStrings(*Shape::Create({2, 1}), {"", std::string(100'000, 'x')});
  EXPECT_TRUE(IsEqual(*TensorFromProto(*TensorToProto(strings)), strings));
  const Tensor scalar = *Tensor::Allocate(DataType::kDouble, Shape());
  EXPECT_EQ(TensorFromProto(*TensorToProto(scalar))->shape().rank(), 0);
  EXPECT_EQ(TensorToProto(Tensor()).status().code(), kInvalid);
}

// The address is one of a device; encoding it would read it, and crash.
TEST(TensorProto, DeviceMemoryIsNotRead) {
  const TensorLocation location = {MemorySpace::kCuda, 2};
  const Tensor tensor = *Tensor::Create(
      DataType::kFloat, *Shape::Create({4}),
      WrapForeignBuffer(reinterpret_cast<void*>(0x7f0000000000), 16, nullptr, location));
  const absl::Status status = TensorToProto(tensor).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("cannot encode float[4] in the memory of gpu:2"));
  // A view stays where its buffer is.
  EXPECT_EQ(tensor.Slice(1, 2)->location(), location);
  EXPECT_TRUE(Tensor().is_on_host());
}

// Beyond 2 GiB protocol buffers count wrong, and die of it or write nonsense.
TEST(TensorProto, TensorThatIsTooLargeForAMessageIsRefusedByItsWholeSize) {
  const Tensor strings = *Tensor::OfStrings(*Shape::Create({100}), std::vector<std::string>(100));
  const Tensor longer =
      *Tensor::OfStrings(*Shape::Create({2}), {std::string(127, 'a'), std::string(128, 'b')});
  const Tensor numbers = *Tensor::Allocate(DataType::kInt32, *Shape::Create({100}));
  for (const Tensor& tensor : {strings, longer, numbers}) {
    const size_t bytes = TensorToProto(tensor)->ByteSizeLong();
    EXPECT_TRUE(TensorToProto(tensor, bytes).ok());
    const absl::Status status = TensorToProto(tensor, bytes - 1).status();
    EXPECT_EQ(status.code(), kInvalid);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(bytes, " bytes")));
  }
}

TEST(TensorProto, NamesOfDimensionsAreIgnored) {
  // dtype: int8; a shape of one dimension of 2 called FF FE; content.
  const std::string bytes("\x08\x06\x12\x08\x12\x06\x08\x02\x12\x02\xff\xfe\x22\x02hi", 16);
  TensorProto proto;
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(proto.ParseFromString(bytes));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(TensorFromProto(proto)->elements<int8_t>(), ElementsAre('h', 'i'));
}

}  // namespace
}  // namespace ferry
