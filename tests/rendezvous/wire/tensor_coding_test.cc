// SPDX-License-Identifier: Apache-2.0
// Messages with tensors, against plain protocol buffers.
#include "rendezvous/recv_tensor/tensor_coding.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coord/wire/bytes.h"
#include "proto/ferry_tensor_stream.pb.h"
#include "proto/tf_worker.pb.h"
#include "rendezvous/recv_tensor/tensor_frames.h"
#include "rendezvous/recv_tensor/wire.h"
#include "rendezvous_fixture.h"
#include "tensor/tensor_proto.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

std::vector<DataType> FixedTypes() {
  std::vector<DataType> types;
  for (int number = 1; number < 64; ++number) {
    const std::optional<DataType> type = DataTypeOfNumber(number);
    if (type.has_value() && IsFixedSize(*type)) types.push_back(*type);
  }
  return types;
}

// Elements that are not all alike.
Tensor Filled(DataType dtype, int64_t count) {
  Tensor tensor = *Tensor::Allocate(dtype, *Shape::Create({count}));
  std::mt19937 random(1);
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data());
  for (size_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(random() & 1);
  return tensor;
}

std::string Text(const grpc::ByteBuffer& bytes) {
  return std::string(coord::View(coord::Flatten(bytes)));
}
// In slices of `piece` bytes, as a connection might bring it.
grpc::ByteBuffer Cut(const std::string& text, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < text.size(); at += piece) {
    slices.emplace_back(text.substr(at, piece));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// The stream's frames, put together again.
absl::StatusOr<ServedValue> ThroughFrames(const ServedValue& value, size_t frame_bytes,
                                          DecodeTarget target = {}) {
  FrameWriter writer(value, frame_bytes);
  FrameReader reader(std::move(target));
  while (!writer.is_done()) {
    grpc::ByteBuffer frame = writer.Next();
    if (absl::Status status = reader.Read(frame); !status.ok()) return status;
  }
  return reader.Finish();
}

TEST(RecvTensorResponse, EveryTypeAndSizeRoundTrips) {
  for (const DataType dtype : FixedTypes()) {
    for (const int64_t count : {0, 1, 1023, 1024, 1025}) {
      const ServedValue value{.tensor = Filled(dtype, count), .send_start_micros = 17};
      grpc::ByteBuffer bytes = *EncodeRecvTensorResponse(value);
      const absl::StatusOr<ServedValue> back = DecodeRecvTensorResponse(bytes, {});
      ASSERT_TRUE(back.ok()) << back.status() << ToString(value.tensor);
      EXPECT_TRUE(IsEqual(back->tensor, value.tensor)) << ToString(value.tensor);
      EXPECT_EQ(back->send_start_micros, 17);
      EXPECT_FALSE(back->is_dead);
      const absl::StatusOr<ServedValue> streamed = ThroughFrames(value, 1000);
      ASSERT_TRUE(streamed.ok()) << streamed.status();
      EXPECT_TRUE(IsEqual(streamed->tensor, value.tensor)) << ToString(value.tensor);
    }
  }
}

TEST(RecvTensorResponse, MebiOfElementsRoundTripsInSlicesOfAnySize) {
  const ServedValue value{.tensor = Filled(DataType::kFloat, 1 << 20), .require_ack = true};
  const std::string text = Text(*EncodeRecvTensorResponse(value));
  for (const size_t piece : {size_t{7919}, size_t{1} << 20, text.size()}) {
    grpc::ByteBuffer bytes = Cut(text, piece);
    const absl::StatusOr<ServedValue> back = DecodeRecvTensorResponse(bytes, {});
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(IsEqual(back->tensor, value.tensor));
    EXPECT_TRUE(back->require_ack);
  }
}

TEST(RecvTensorResponse, ContentIsTheTensorsOwnMemory) {
  const Tensor tensor = Filled(DataType::kFloat, 1000);
  {
    const grpc::ByteBuffer bytes = *EncodeRecvTensorResponse({.tensor = tensor});
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(bytes.Dump(&slices).ok());
    ASSERT_EQ(slices.size(), 2u);
    EXPECT_EQ(static_cast<const void*>(slices[1].begin()), tensor.data());
    EXPECT_EQ(tensor.buffer().use_count(), 2);
  }
  EXPECT_EQ(tensor.buffer().use_count(), 1);
  // 1024 bytes are copied.
  const grpc::ByteBuffer small =
      *EncodeRecvTensorResponse({.tensor = Filled(DataType::kUint8, 1024)});
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(small.Dump(&slices).ok());
  EXPECT_EQ(slices.size(), 1u);
}

TEST(RecvTensorResponse, StringsRoundTrip) {
  std::vector<std::string> many;
  for (int i = 0; i < 1000; ++i) many.push_back(std::string(static_cast<size_t>(i), 'x'));
  const std::vector<std::vector<std::string>> cases = {
      {}, {""}, {std::string(1 << 20, 'y')}, {std::string("\0a", 2), ""}, many};
  for (const std::vector<std::string>& strings : cases) {
    const ServedValue value{.tensor = *Tensor::OfStrings(
                                *Shape::Create({static_cast<int64_t>(strings.size())}), strings)};
    grpc::ByteBuffer bytes = *EncodeRecvTensorResponse(value);
    const absl::StatusOr<ServedValue> back = DecodeRecvTensorResponse(bytes, {});
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(IsEqual(back->tensor, value.tensor));
    const absl::StatusOr<ServedValue> streamed = ThroughFrames(value, 1000);
    ASSERT_TRUE(streamed.ok()) << streamed.status();
    EXPECT_TRUE(IsEqual(streamed->tensor, value.tensor));
  }
}

TEST(RecvTensorResponse, DeadStaysDeadForAnyDestination) {
  const ServedValue dead{.is_dead = true, .require_ack = true};
  const std::string text = Text(*EncodeRecvTensorResponse(dead));
  const DecodeTarget target{.destination = Filled(DataType::kInt8, 5)};
  grpc::ByteBuffer bytes = Cut(text, 3);
  const absl::StatusOr<ServedValue> back = DecodeRecvTensorResponse(bytes, target);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->is_dead);
  EXPECT_TRUE(back->require_ack);
  EXPECT_FALSE(back->tensor.is_valid());
  EXPECT_TRUE(ThroughFrames(dead, 1000, target)->is_dead);
  // TensorFlow's readers expect a tensor: float[0], as its own dead values are.
  tensorflow::RecvTensorResponse parsed;
  ASSERT_TRUE(parsed.ParseFromString(text));
  EXPECT_EQ(parsed.tensor().dtype(), 1);
  ASSERT_EQ(parsed.tensor().tensor_shape().dim_size(), 1);
  EXPECT_EQ(parsed.tensor().tensor_shape().dim(0).size(), 0);
}

TEST(RecvTensorResponse, PlainProtocolBuffersParseIt) {
  for (const DataType dtype : FixedTypes()) {
    for (const int64_t count : {0, 1, 3000}) {
      const ServedValue value{
          .tensor = Filled(dtype, count), .send_start_micros = 5, .require_ack = true};
      tensorflow::RecvTensorResponse parsed;
      ASSERT_TRUE(parsed.ParseFromString(Text(*EncodeRecvTensorResponse(value))));
      EXPECT_TRUE(IsEqual(*TensorFromProto(parsed.tensor()), value.tensor));
      EXPECT_EQ(parsed.send_start_micros(), 5);
      EXPECT_TRUE(parsed.require_ack());
      EXPECT_EQ(parsed.GetReflection()->GetUnknownFields(parsed).field_count(), 0);

      // And their messages are parsed, also with values in the type's own field.
      tensorflow::RecvTensorResponse written;
      *written.mutable_tensor() = *TensorToProto(value.tensor);
      written.set_is_dead(false);
      grpc::ByteBuffer bytes = Cut(written.SerializeAsString(), 100);
      EXPECT_TRUE(IsEqual(DecodeRecvTensorResponse(bytes, {})->tensor, value.tensor));
    }
  }
  tensorflow::RecvTensorResponse values;
  values.mutable_tensor()->set_dtype(tensorflow::DT_FLOAT);
  values.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(3);
  values.mutable_tensor()->add_float_val(2.5f);
  grpc::ByteBuffer bytes = Cut(values.SerializeAsString(), 100);
  const absl::StatusOr<ServedValue> back = DecodeRecvTensorResponse(bytes, {});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->tensor.elements<float>()[2], 2.5f);
}

TEST(RecvTensorResponse, ContentBeforeItsTypeIsParsedToo) {
  // tensor { tensor_content: "\1\2" tensor_shape { dim { size: 2 } } dtype: DT_UINT8 }
  const std::string text("\x0a\x0c\x22\x02\x01\x02\x12\x04\x12\x02\x08\x02\x08\x04", 14);
  grpc::ByteBuffer bytes = Cut(text, 1);
  const absl::StatusOr<ServedValue> back = DecodeRecvTensorResponse(bytes, {});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->tensor.elements<uint8_t>()[1], 2);
}

TEST(RecvTensorResponse, DestinationIsFilledAndReturned) {
  const Tensor tensor = Filled(DataType::kFloat, 3000);
  const auto check = [&tensor](absl::StatusOr<ServedValue> back, const Tensor& destination) {
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->tensor.data(), destination.data());
    EXPECT_TRUE(IsEqual(back->tensor, tensor));
  };
  tensorflow::RecvTensorResponse slow;
  slow.mutable_tensor()->set_dtype(tensorflow::DT_FLOAT);
  slow.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(3000);
  for (const float each : tensor.elements<float>()) slow.mutable_tensor()->add_float_val(each);
  for (const std::vector<int64_t>& dims :
       {std::vector<int64_t>{3000}, std::vector<int64_t>{30, 100}}) {
    Tensor destination = *Tensor::Allocate(DataType::kFloat, *Shape::Create(dims));
    grpc::ByteBuffer bytes = *EncodeRecvTensorResponse({.tensor = tensor});
    check(DecodeRecvTensorResponse(bytes, {.destination = destination}), destination);
    std::memset(destination.mutable_data(), 7, destination.bytes());
    check(ThroughFrames({.tensor = tensor}, 5000, {.destination = destination}), destination);
    std::memset(destination.mutable_data(), 7, destination.bytes());
    bytes = Cut(slow.SerializeAsString(), 1000);
    check(DecodeRecvTensorResponse(bytes, {.destination = destination}), destination);
  }
}

TEST(RecvTensorResponse, DestinationOfAnotherTypeOrSizeIsAnError) {
  for (const Tensor& sent :
       {Filled(DataType::kFloat, 10), Filled(DataType::kInt32, 9), Value("v")}) {
    const DecodeTarget target{.destination = Filled(DataType::kInt32, 10)};
    grpc::ByteBuffer bytes = *EncodeRecvTensorResponse({.tensor = sent});
    for (const absl::Status& status : {DecodeRecvTensorResponse(bytes, target).status(),
                                       ThroughFrames({.tensor = sent}, 5, target).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("the destination is int32[10]"));
    }
  }
}

TEST(RecvTensorResponse, ClosedGateStopsWriting) {
  ClosableWriter gate;
  gate.Close();
  Tensor destination = *Tensor::Allocate(DataType::kUint8, *Shape::Create({3000}));
  std::memset(destination.mutable_data(), 7, 3000);
  const ServedValue value{.tensor = Filled(DataType::kUint8, 3000)};
  const DecodeTarget target{.destination = destination, .gate = &gate};
  grpc::ByteBuffer bytes = *EncodeRecvTensorResponse(value);
  EXPECT_TRUE(absl::IsCancelled(DecodeRecvTensorResponse(bytes, target).status()));
  EXPECT_TRUE(absl::IsCancelled(ThroughFrames(value, 1000, target).status()));
  EXPECT_EQ(destination.elements<uint8_t>()[0], 7);
}

TEST(RecvTensorResponse, AllocatorIsCalled) {
  int calls = 0;
  const DecodeTarget target{.allocator = [&calls](DataType dtype, Shape shape) {
    ++calls;
    return Tensor::Allocate(dtype, std::move(shape));
  }};
  const ServedValue value{.tensor = Filled(DataType::kInt16, 2000)};
  grpc::ByteBuffer bytes = *EncodeRecvTensorResponse(value);
  EXPECT_TRUE(IsEqual(DecodeRecvTensorResponse(bytes, target)->tensor, value.tensor));
  EXPECT_TRUE(IsEqual(ThroughFrames(value, 100, target)->tensor, value.tensor));
  EXPECT_EQ(calls, 2);
}

// The memory is never touched.
TEST(RecvTensorResponse, TwoGibibytesFailNamingTheSize) {
  const int64_t bytes = int64_t{2} << 30;
  const auto tensor = Tensor::Allocate(DataType::kUint8, *Shape::Create({bytes}));
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  const absl::Status status = EncodeRecvTensorResponse({.tensor = *tensor}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("uint8[2147483648] has 2147483648 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/ferry.v1.TensorStream/Recv"));
  FrameWriter writer({.tensor = *tensor});
  EXPECT_GT(writer.Next().Length(), kFrameBytes);
}

// Frames are protocol buffers too.
TEST(TensorFrames, PlainProtocolBuffersParseThem) {
  const Tensor tensor = Filled(DataType::kFloat, 1000);
  FrameWriter writer({.tensor = tensor, .require_ack = true}, 1500);
  std::string content;
  for (int i = 0; !writer.is_done(); ++i) {
    v1::TensorStreamFrame frame;
    ASSERT_TRUE(frame.ParseFromString(Text(writer.Next())));
    EXPECT_EQ(frame.has_header(), i == 0);
    if (i == 0) {
      EXPECT_EQ(frame.header().content_bytes(), 4000u);
      EXPECT_TRUE(frame.header().require_ack());
    }
    content += frame.content();
  }
  EXPECT_EQ(content, std::string(static_cast<const char*>(tensor.data()), 4000));
}

TEST(TensorFrames, OversizedMessagesAreRefused) {
  const ServedValue value{.tensor = Filled(DataType::kUint8, 100)};
  const auto read = [](FrameReader& reader, const v1::TensorStreamFrame& frame) {
    grpc::ByteBuffer bytes = Cut(frame.SerializeAsString(), 10);
    return reader.Read(bytes);
  };
  v1::TensorStreamFrame first;
  first.mutable_header()->set_dtype(4);
  first.mutable_header()->add_dim(100);
  first.mutable_header()->set_content_bytes(100);
  v1::TensorStreamFrame content;
  content.set_content(std::string(60, 'x'));
  {
    FrameReader reader({});
    EXPECT_TRUE(absl::IsInternal(read(reader, content)));  // no header
  }
  {
    FrameReader reader({});
    EXPECT_TRUE(read(reader, first).ok());
    EXPECT_TRUE(read(reader, content).ok());
    EXPECT_TRUE(absl::IsInternal(read(reader, content)));  // 120 bytes
  }
  {
    FrameReader reader({});
    EXPECT_TRUE(read(reader, first).ok());
    EXPECT_TRUE(absl::IsInternal(read(reader, first)));
  }
  {
    FrameReader reader({});
    EXPECT_TRUE(read(reader, first).ok());
    EXPECT_TRUE(read(reader, content).ok());
    EXPECT_THAT(std::string(reader.Finish().status().message()), HasSubstr("60 of 100 bytes"));
  }
  {
    FrameReader reader({}, 99);
    EXPECT_TRUE(absl::IsResourceExhausted(read(reader, first)));
  }
  first.mutable_header()->set_content_bytes(99);
  FrameReader reader({});
  EXPECT_TRUE(absl::IsInvalidArgument(read(reader, first)));
  first.mutable_header()->set_dtype(7);
  first.mutable_header()->set_dim(0, int64_t{1} << 40);
  FrameReader strings({});
  EXPECT_TRUE(absl::IsInvalidArgument(read(strings, first)));
}

// No bytes from a wire may do harm; sanitizers check.
TEST(Hostile, MutatedMessagesEndInAnAnswerOrAnError) {
  const ServedValue value{.tensor = Filled(DataType::kFloat, 500), .require_ack = true};
  const ServedValue strings{.tensor = *Tensor::OfStrings(*Shape::Create({2}), {"abc", "defg"})};
  std::mt19937 random(20261121);
  for (const ServedValue& each : {value, strings}) {
    const std::string good = Text(*EncodeRecvTensorResponse(each));
    FrameWriter writer(each, 600);
    std::vector<std::string> frames;
    while (!writer.is_done()) frames.push_back(Text(writer.Next()));
    for (int round = 0; round < 3000; ++round) {
      const auto mutate = [&random](std::string text) {
        const size_t changes = 1 + random() % 4;
        // Mostly the beginning, where the structure is.
        for (size_t i = 0; i < changes && !text.empty(); ++i) {
          text[random() % std::min<size_t>(text.size(), 60)] = static_cast<char>(random());
        }
        if (random() % 4 == 0) text.resize(random() % (text.size() + 1));
        return text;
      };
      grpc::ByteBuffer bytes = Cut(mutate(good), 1 + random() % 100);
      DecodeRecvTensorResponse(bytes, {}).status().IgnoreError();
      FrameReader reader({}, 1 << 20);
      for (const std::string& frame : frames) {
        grpc::ByteBuffer mutated = Cut(random() % 2 == 0 ? mutate(frame) : frame, 50);
        if (!reader.Read(mutated).ok()) break;
      }
      reader.Finish().status().IgnoreError();
    }
  }
}

// The connection may end anywhere, and a number in its middle.
TEST(Hostile, PartOfAMessage_IsAnErrorWhereItIsOneForProtocolBuffers) {
  tensorflow::RecvTensorResponse tensor;
  *tensor.mutable_tensor() = *TensorToProto(Filled(DataType::kUint8, 3));
  tensorflow::RecvTensorResponse rest;
  rest.set_send_start_micros(int64_t{1} << 40);
  const auto add = [](int field, uint64_t value, std::string& text) {
    wire::AppendVarint(wire::VarintTag(field), text);
    wire::AppendVarint(value, text);
  };
  std::string text = tensor.SerializeAsString() + rest.SerializeAsString();
  // Longer than they need be, as another encoder may write them.
  add(tensorflow::RecvTensorResponse::kRequireAckFieldNumber, 1000, text);
  add(tensorflow::RecvTensorResponse::kIsDeadFieldNumber, 1000, text);
  size_t parts = 0;
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    const std::string part = text.substr(0, bytes);
    tensorflow::RecvTensorResponse parsed;
    const bool is_message = parsed.ParseFromString(part);
    grpc::ByteBuffer buffer = Cut(part, 4);
    const absl::StatusOr<ServedValue> value = DecodeRecvTensorResponse(buffer, {});
    if (!is_message) {
      EXPECT_FALSE(value.ok()) << bytes << " of " << text.size() << " bytes";
    } else if (value.ok()) {
      ++parts;
      EXPECT_EQ(value->send_start_micros, parsed.send_start_micros());
      EXPECT_EQ(value->require_ack, parsed.require_ack());
      EXPECT_EQ(value->is_dead, parsed.is_dead());
    }
  }
  EXPECT_EQ(parts, 4u) << "the tensor, and each field after it";
}

TEST(Hostile, EmptyAndGarbageMessagesAreErrors) {
  for (const std::string& text : {std::string(), std::string(100, '\xff'), std::string("\x0a")}) {
    grpc::ByteBuffer bytes = Cut(text, 10);
    EXPECT_FALSE(DecodeRecvTensorResponse(bytes, {}).ok());
    FrameReader reader({});
    EXPECT_FALSE(reader.Read(bytes).ok());
  }
  grpc::ByteBuffer none;
  EXPECT_FALSE(DecodeRecvTensorResponse(none, {}).ok());
  FrameReader reader({});
  EXPECT_FALSE(reader.Read(none).ok());
}

// A few bytes that promise gibibytes: nothing is allocated before they have come.
TEST(Hostile, MissingContent_AllocatesNoMemory) {
  for (const uint64_t promised :
       {uint64_t{100}, uint64_t{INT32_MAX}, uint64_t{1} << 31, uint64_t{UINT32_MAX}}) {
    tensorflow::TensorProto proto;
    proto.set_dtype(tensorflow::DT_UINT8);
    proto.mutable_tensor_shape()->add_dim()->set_size(static_cast<int64_t>(promised));
    std::string tensor = proto.SerializeAsString();
    wire::AppendVarint(wire::BytesTag(tensorflow::TensorProto::kTensorContentFieldNumber), tensor);
    wire::AppendVarint(promised, tensor);
    tensor += "short";
    std::string text;
    wire::AppendVarint(wire::BytesTag(tensorflow::RecvTensorResponse::kTensorFieldNumber), text);
    wire::AppendVarint(tensor.size(), text);
    grpc::ByteBuffer bytes = Cut(text + tensor, 10);
    int calls = 0;
    const DecodeTarget target{
        .allocator = [&calls](DataType, const Shape&) -> absl::StatusOr<Tensor> {
          ++calls;
          return absl::ResourceExhaustedError("no memory");
        }};
    EXPECT_FALSE(DecodeRecvTensorResponse(bytes, target).ok()) << promised;
    EXPECT_EQ(calls, 0) << promised;
  }
}

}  // namespace
}  // namespace ferry
