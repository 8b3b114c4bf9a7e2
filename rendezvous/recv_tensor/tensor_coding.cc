// SPDX-License-Identifier: Apache-2.0
// Hand-written encoding and decoding of RecvTensorResponse.
#include "rendezvous/recv_tensor/tensor_coding.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/impl/codegen/proto_buffer_reader.h>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "coord/wire/bytes.h"
#include "proto/tf_tensor.pb.h"
#include "proto/tf_worker.pb.h"
#include "rendezvous/recv_tensor/wire.h"
#include "tensor/tensor_proto.h"

namespace ferry {
namespace {

using google::protobuf::io::CodedInputStream;
using tensorflow::RecvTensorResponse;
using tensorflow::TensorProto;
using wire::AppendVarint;
using wire::BytesTag;
using wire::VarintTag;

// Without tensor_content, which may be too large, and its tag.
std::string TensorPrefix(const Tensor& tensor) {
  TensorProto proto;
  FillTensorHeader(tensor, proto);
  return proto.SerializeAsString();
}

// The content of TensorFlow's dead values, which its readers require.
std::string DeadTensor() {
  TensorProto proto;
  proto.set_dtype(static_cast<tensorflow::DataType>(DataType::kFloat));
  proto.mutable_tensor_shape()->add_dim();
  return proto.SerializeAsString();
}

// Fields 2, 3 and 5.
std::string Header(const ServedValue& value) {
  RecvTensorResponse header;
  header.set_is_dead(value.is_dead);
  header.set_send_start_micros(value.send_start_micros);
  header.set_require_ack(value.require_ack);
  return header.SerializeAsString();
}

constexpr char kWhereLargeOnesGo[] = ". Larger ones go by /ferry.v1.TensorStream/Recv";

absl::Status TooLarge(const Tensor& tensor, size_t max_bytes) {
  return absl::InvalidArgumentError(absl::StrCat(ToString(tensor), " has ", tensor.bytes(),
                                                 " bytes; a RecvTensorResponse holds ", max_bytes,
                                                 kWhereLargeOnesGo));
}

absl::Status NobodyWaits() {
  return absl::CancelledError("no receiver waits for the tensor any more");
}

enum class Fast { kDone, kNotPossible, kClosed };

// Parses type, shape and content in that order; anything else is left to the full parser.
Fast ReadTensor(CodedInputStream& in, const DecodeTarget& target, std::optional<Tensor>& out) {
  std::optional<DataType> dtype;
  std::optional<Shape> shape;
  while (const uint32_t tag = in.ReadTag()) {
    if (out.has_value()) return Fast::kNotPossible;
    uint64_t number = 0;
    uint32_t length = 0;
    switch (tag) {
      case VarintTag(TensorProto::kDtypeFieldNumber):
        if (!in.ReadVarint64(&number) || number > 1000) return Fast::kNotPossible;
        dtype = DataTypeOfNumber(static_cast<int>(number));
        if (!dtype.has_value() || !IsFixedSize(*dtype)) return Fast::kNotPossible;
        break;
      case BytesTag(TensorProto::kTensorShapeFieldNumber): {
        tensorflow::TensorShapeProto proto;
        if (shape.has_value() || !in.ReadVarint32(&length)) return Fast::kNotPossible;
        const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(length));
        if (!proto.MergeFromCodedStream(&in) || in.BytesUntilLimit() != 0) {
          return Fast::kNotPossible;
        }
        in.PopLimit(limit);
        absl::InlinedVector<int64_t, 8> dims;
        for (const auto& dim : proto.dim()) dims.push_back(dim.size());
        absl::StatusOr<Shape> made = Shape::Create(dims);
        if (!made.ok()) return Fast::kNotPossible;
        shape = *std::move(made);
        break;
      }
      case VarintTag(TensorProto::kVersionNumberFieldNumber):
        if (!in.ReadVarint64(&number)) return Fast::kNotPossible;
        break;
      case BytesTag(TensorProto::kTensorContentFieldNumber): {
        if (!dtype.has_value() || !shape.has_value()) return Fast::kNotPossible;
        if (!in.ReadVarint32(&length) || int64_t{length} > int64_t{in.BytesUntilLimit()}) {
          return Fast::kNotPossible;
        }
        const absl::StatusOr<size_t> bytes = TensorBytes(*dtype, *shape);
        if (!bytes.ok() || *bytes != length) return Fast::kNotPossible;
        // If it cannot be allocated, the full parser reports the error, unless the value is dead.
        absl::StatusOr<Tensor> destination = DestinationFor(*dtype, *shape, target);
        if (!destination.ok()) return Fast::kNotPossible;
        switch (wire::CopyOut(in, length, destination->mutable_data(), target.gate)) {
          case wire::CopyResult::kClosed:
            return Fast::kClosed;
          case wire::CopyResult::kTooShort:
            return Fast::kNotPossible;
          case wire::CopyResult::kCopied:
            break;
        }
        out = *std::move(destination);
        break;
      }
      default:
        return Fast::kNotPossible;
    }
  }
  // Without content only if there are no elements; the full parser handles zeros.
  if (!out.has_value() && dtype.has_value() && shape.has_value() && shape->element_count() == 0) {
    if (absl::StatusOr<Tensor> destination = DestinationFor(*dtype, *shape, target);
        destination.ok()) {
      out = *std::move(destination);
    }
  }
  return out.has_value() ? Fast::kDone : Fast::kNotPossible;
}

Fast ReadFast(CodedInputStream& in, const DecodeTarget& target, ServedValue& value) {
  std::optional<Tensor> tensor;
  bool has_tensor = false;
  while (const uint32_t tag = in.ReadTag()) {
    uint64_t number = 0;
    uint32_t length = 0;
    switch (tag) {
      case VarintTag(RecvTensorResponse::kIsDeadFieldNumber):
        if (!in.ReadVarint64(&number)) return Fast::kNotPossible;
        value.is_dead = number != 0;
        break;
      case VarintTag(RecvTensorResponse::kSendStartMicrosFieldNumber):
        if (!in.ReadVarint64(&number)) return Fast::kNotPossible;
        value.send_start_micros = static_cast<int64_t>(number);
        break;
      case VarintTag(RecvTensorResponse::kRequireAckFieldNumber):
        if (!in.ReadVarint64(&number)) return Fast::kNotPossible;
        value.require_ack = number != 0;
        break;
      case BytesTag(RecvTensorResponse::kTensorFieldNumber): {
        if (has_tensor || !in.ReadVarint32(&length)) return Fast::kNotPossible;
        has_tensor = true;
        const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(length));
        const Fast result = ReadTensor(in, target, tensor);
        if (result != Fast::kDone) return result;
        if (in.BytesUntilLimit() != 0) return Fast::kNotPossible;
        in.PopLimit(limit);
        break;
      }
      default:
        return Fast::kNotPossible;
    }
  }
  if (!in.ConsumedEntireMessage() || !has_tensor) return Fast::kNotPossible;
  if (!value.is_dead) value.tensor = *std::move(tensor);
  return Fast::kDone;
}

absl::Status DecodeSlowly(grpc::ByteBuffer& bytes, const DecodeTarget& target, ServedValue& value) {
  RecvTensorResponse response;
  if (!coord::ParseMessage(bytes, response)) {
    return absl::InternalError(
        absl::StrCat("the answer of ", bytes.Length(), " bytes is no RecvTensorResponse"));
  }
  value.is_dead = response.is_dead();
  value.send_start_micros = response.send_start_micros();
  value.require_ack = response.require_ack();
  value.tensor = Tensor();
  if (value.is_dead) return absl::OkStatus();
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, TensorFromProto(response.tensor()));
  const bool is_in_place = target.allocator == nullptr || tensor.dtype() == DataType::kString;
  if (!target.destination.is_valid() && is_in_place) {
    value.tensor = std::move(tensor);
    return absl::OkStatus();
  }
  FERRY_ASSIGN_OR_RETURN(value.tensor, DestinationFor(tensor.dtype(), tensor.shape(), target));
  const auto copy = [&] {
    if (tensor.bytes() > 0) {
      std::memcpy(value.tensor.mutable_data(), tensor.data(), tensor.bytes());
    }
  };
  if (target.gate == nullptr) {
    copy();
  } else if (!target.gate->Pass(copy)) {
    return NobodyWaits();
  }
  return absl::OkStatus();
}

absl::Status Decode(grpc::ByteBuffer& bytes, const DecodeTarget& target, ServedValue& value) {
  if (bytes.Length() > kMaxUnaryBytes + 4095) {
    return absl::InternalError(absl::StrCat("an answer of ", bytes.Length(),
                                            " bytes; a RecvTensorResponse has less than 2 GiB"));
  }
  if (!bytes.Valid()) return absl::InternalError("an answer without a message");
  {
    grpc::ProtoBufferReader reader(&bytes);
    if (!reader.status().ok()) return absl::InternalError("an answer that cannot be decompressed");
    CodedInputStream in(&reader);
    // No inner length may exceed the bytes received.
    in.PushLimit(static_cast<int>(bytes.Length()));
    switch (ReadFast(in, target, value)) {
      case Fast::kDone:
        return absl::OkStatus();
      case Fast::kClosed:
        return NobodyWaits();
      case Fast::kNotPossible:
        break;
    }
  }
  return DecodeSlowly(bytes, target, value);
}

}  // namespace

grpc::Slice SliceOf(const Tensor& tensor) {
  if (tensor.bytes() == 0) return grpc::Slice();
  auto* owner = new std::shared_ptr<Buffer>(tensor.buffer());
  return grpc::Slice(
      const_cast<void*>(tensor.data()), tensor.bytes(),
      [](void* shared) { delete static_cast<std::shared_ptr<Buffer>*>(shared); }, owner);
}

absl::StatusOr<grpc::ByteBuffer> EncodeRecvTensorResponse(const ServedValue& value,
                                                          size_t max_bytes) {
  std::string bytes = Header(value);
  const Tensor& tensor = value.tensor;
  if (value.is_dead || tensor.dtype() == DataType::kString || tensor.bytes() == 0) {
    std::string proto;
    if (value.is_dead) {
      proto = DeadTensor();
    } else {
      const absl::StatusOr<TensorProto> message = TensorToProto(tensor, max_bytes);
      if (!message.ok()) {
        return absl::Status(message.status().code(),
                            absl::StrCat(message.status().message(), kWhereLargeOnesGo));
      }
      proto = message->SerializeAsString();
    }
    AppendVarint(BytesTag(RecvTensorResponse::kTensorFieldNumber), bytes);
    AppendVarint(proto.size(), bytes);
    // There may be many strings: put their bytes in a slice of their own.
    const grpc::Slice slices[] = {grpc::Slice(bytes), grpc::Slice(proto)};
    return grpc::ByteBuffer(slices, 2);
  }
  if (tensor.bytes() > max_bytes) return TooLarge(tensor, max_bytes);
  std::string prefix = TensorPrefix(tensor);
  AppendVarint(BytesTag(TensorProto::kTensorContentFieldNumber), prefix);
  AppendVarint(tensor.bytes(), prefix);
  AppendVarint(BytesTag(RecvTensorResponse::kTensorFieldNumber), bytes);
  AppendVarint(prefix.size() + tensor.bytes(), bytes);
  bytes += prefix;
  if (tensor.bytes() <= kMaxCopiedBytes) {
    bytes.append(static_cast<const char*>(tensor.data()), tensor.bytes());
    const grpc::Slice slice(bytes);
    return grpc::ByteBuffer(&slice, 1);
  }
  const grpc::Slice slices[] = {grpc::Slice(bytes), SliceOf(tensor)};
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<Tensor> DestinationFor(DataType dtype, const Shape& shape,
                                      const DecodeTarget& target) {
  const Tensor& wanted = target.destination;
  if (wanted.is_valid()) {
    if (dtype != wanted.dtype() || !IsFixedSize(dtype) ||
        shape.element_count() != wanted.shape().element_count()) {
      return absl::InvalidArgumentError(absl::StrCat("a ", DataTypeName(dtype), ToString(shape),
                                                     " has come; the destination is ",
                                                     ToString(wanted)));
    }
    if (wanted.shape() == shape) return wanted;
    return wanted.Reshape(shape);
  }
  return target.allocator == nullptr ? Tensor::Allocate(dtype, shape)
                                     : target.allocator(dtype, shape);
}

absl::StatusOr<ServedValue> DecodeRecvTensorResponse(grpc::ByteBuffer& bytes,
                                                     const DecodeTarget& target) {
  ServedValue value;
  FERRY_RETURN_IF_ERROR(Decode(bytes, target, value));
  return value;
}

}  // namespace ferry
