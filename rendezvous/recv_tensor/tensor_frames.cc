// SPDX-License-Identifier: Apache-2.0
// Hand-written encoding and decoding of frames.
#include "rendezvous/recv_tensor/tensor_frames.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <grpcpp/impl/codegen/proto_buffer_reader.h>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "proto/ferry_tensor_stream.pb.h"
#include "rendezvous/recv_tensor/wire.h"

namespace ferry {
namespace {

using google::protobuf::io::CodedInputStream;
using wire::AppendVarint;
using wire::BytesTag;

constexpr uint32_t kHeaderTag = BytesTag(v1::TensorStreamFrame::kHeaderFieldNumber);
constexpr uint32_t kContentTag = BytesTag(v1::TensorStreamFrame::kContentFieldNumber);
// Limit on a header: a shape of 254 large dimensions takes 3 KB.
constexpr uint32_t kMaxHeaderBytes = 16 << 10;

grpc::Slice StringsContent(const Tensor& tensor) {
  auto* content = new std::string;
  content->reserve(tensor.bytes() + tensor.strings().size() * 2);
  for (const std::string& each : tensor.strings()) AppendVarint(each.size(), *content);
  for (const std::string& each : tensor.strings()) content->append(each);
  return grpc::Slice(
      content->data(), content->size(), [](void* made) { delete static_cast<std::string*>(made); },
      content);
}

absl::Status NoFrame(size_t bytes) {
  return absl::InternalError(absl::StrCat("a frame of ", bytes, " bytes is no TensorStreamFrame"));
}

}  // namespace

FrameWriter::FrameWriter(const ServedValue& value, size_t frame_bytes) : frame_bytes_(frame_bytes) {
  v1::TensorStreamHeader header;
  header.set_is_dead(value.is_dead);
  header.set_send_start_micros(value.send_start_micros);
  header.set_require_ack(value.require_ack);
  if (!value.is_dead) {
    const Tensor& tensor = value.tensor;
    header.set_dtype(static_cast<int>(tensor.dtype()));
    for (const int64_t dim : tensor.shape().dims()) header.add_dim(dim);
    content_ = tensor.dtype() == DataType::kString ? StringsContent(tensor) : SliceOf(tensor);
    header.set_content_bytes(content_.size());
  }
  AppendVarint(kHeaderTag, header_);
  AppendVarint(header.ByteSizeLong(), header_);
  header.AppendToString(&header_);
}

grpc::ByteBuffer FrameWriter::Next() {
  std::string prefix;
  if (!is_started_) prefix = std::move(header_);
  is_started_ = true;
  const size_t bytes = std::min(frame_bytes_, content_.size() - sent_bytes_);
  if (bytes > 0) {
    AppendVarint(kContentTag, prefix);
    AppendVarint(bytes, prefix);
  }
  if (bytes <= kMaxCopiedBytes) {
    if (bytes > 0) {
      prefix.append(reinterpret_cast<const char*>(content_.begin()) + sent_bytes_, bytes);
    }
    sent_bytes_ += bytes;
    const grpc::Slice slice(prefix);
    return grpc::ByteBuffer(&slice, 1);
  }
  const grpc::Slice slices[] = {grpc::Slice(prefix),
                                content_.sub(sent_bytes_, sent_bytes_ + bytes)};
  sent_bytes_ += bytes;
  return grpc::ByteBuffer(slices, 2);
}

absl::Status FrameReader::Read(grpc::ByteBuffer& frame) {
  const size_t frame_bytes = frame.Length();
  if (frame_bytes > kMaxUnaryBytes) return NoFrame(frame_bytes);
  grpc::ProtoBufferReader reader(&frame);
  if (!reader.status().ok()) return NoFrame(frame_bytes);
  CodedInputStream in(&reader);
  in.PushLimit(static_cast<int>(frame_bytes));
  while (const uint32_t tag = in.ReadTag()) {
    if (tag == kHeaderTag) {
      FERRY_RETURN_IF_ERROR(ReadHeader(in));
    } else if (tag == kContentTag) {
      FERRY_RETURN_IF_ERROR(ReadContent(in));
    } else if (!wire::WireFormatLite::SkipField(&in, tag)) {
      return NoFrame(frame_bytes);
    }
  }
  if (!in.ConsumedEntireMessage()) return NoFrame(frame_bytes);
  if (!has_header_) return absl::InternalError("the first frame has no header");
  return absl::OkStatus();
}

absl::Status FrameReader::ReadHeader(CodedInputStream& in) {
  if (has_header_) return absl::InternalError("a second header in a stream of one tensor");
  uint32_t length = 0;
  std::string text;
  v1::TensorStreamHeader header;
  if (!in.ReadVarint32(&length) || length > kMaxHeaderBytes ||
      !in.ReadString(&text, static_cast<int>(length)) || !header.ParseFromString(text)) {
    return absl::InternalError("the header of a tensor's stream is none");
  }
  value_.is_dead = header.is_dead();
  value_.send_start_micros = header.send_start_micros();
  value_.require_ack = header.require_ack();
  has_header_ = true;
  if (value_.is_dead) return absl::OkStatus();
  const std::optional<DataType> dtype = DataTypeOfNumber(header.dtype());
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of type ", header.dtype(), " cannot be sent"));
  }
  FERRY_ASSIGN_OR_RETURN(const Shape shape,
                         Shape::Create(absl::MakeConstSpan(
                             header.dim().data(), static_cast<size_t>(header.dim_size()))));
  if (header.content_bytes() > max_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        DataTypeName(*dtype), ToString(shape), " has ", header.content_bytes(),
        " bytes, over the limit of ", max_bytes_, " (GrpcTensorFetcherOptions::max_tensor_bytes)"));
  }
  content_bytes_ = header.content_bytes();
  if (*dtype == DataType::kString) {
    if (target_.destination.is_valid()) return DestinationFor(*dtype, shape, target_).status();
    // Each string has a length of at least one byte.
    if (static_cast<uint64_t>(shape.element_count()) > content_bytes_) {
      return absl::InvalidArgumentError(
          absl::StrCat("string", ToString(shape), " in ", content_bytes_, " bytes"));
    }
    is_strings_ = true;
    strings_shape_ = shape;
    return absl::OkStatus();
  }
  FERRY_ASSIGN_OR_RETURN(const size_t bytes, TensorBytes(*dtype, shape));
  if (bytes != content_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(DataTypeName(*dtype), ToString(shape), " has ",
                                                   bytes, " bytes; the header says ",
                                                   content_bytes_));
  }
  FERRY_ASSIGN_OR_RETURN(value_.tensor, DestinationFor(*dtype, shape, target_));
  return absl::OkStatus();
}

absl::Status FrameReader::ReadContent(CodedInputStream& in) {
  uint32_t length = 0;
  if (!has_header_ || !in.ReadVarint32(&length) ||
      static_cast<int64_t>(length) > int64_t{in.BytesUntilLimit()}) {
    return absl::InternalError("content of a tensor's stream that is cut off, or has no header");
  }
  if (length > content_bytes_ - received_bytes_) {
    return absl::InternalError(absl::StrCat("a tensor's stream has more than the ", content_bytes_,
                                            " bytes that its header says"));
  }
  char* out = nullptr;
  if (is_strings_) {
    strings_.resize(received_bytes_ + length);
    out = strings_.data() + received_bytes_;
  } else if (length > 0) {
    out = static_cast<char*>(value_.tensor.mutable_data()) + received_bytes_;
  }
  switch (wire::CopyOut(in, length, out, target_.gate)) {
    case wire::CopyResult::kClosed:
      return absl::CancelledError("no receiver waits for the tensor any more");
    case wire::CopyResult::kTooShort:
      return absl::InternalError("a frame ends before its content");
    case wire::CopyResult::kCopied:
      break;
  }
  received_bytes_ += length;
  return absl::OkStatus();
}

absl::StatusOr<ServedValue> FrameReader::Finish() {
  if (!has_header_) return absl::InternalError("a tensor's stream ended before it began");
  if (received_bytes_ != content_bytes_) {
    return absl::InternalError(absl::StrCat("a tensor's stream ended after ", received_bytes_,
                                            " of ", content_bytes_, " bytes"));
  }
  if (is_strings_) {
    FERRY_ASSIGN_OR_RETURN(value_.tensor, Strings());
  }
  return std::move(value_);
}

absl::StatusOr<Tensor> FrameReader::Strings() const {
  std::vector<uint64_t> lengths(static_cast<size_t>(strings_shape_.element_count()));
  size_t at = 0;
  for (uint64_t& length : lengths) {
    for (int shift = 0;; shift += 7) {
      if (at == strings_.size() || shift > 63) {
        return absl::InvalidArgumentError("the lengths of streamed strings are cut off");
      }
      const uint8_t byte = static_cast<uint8_t>(strings_[at++]);
      length |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) break;
    }
  }
  std::vector<std::string> strings;
  strings.reserve(lengths.size());
  for (const uint64_t length : lengths) {
    if (length > strings_.size() - at) {
      return absl::InvalidArgumentError("streamed strings are longer than their stream");
    }
    strings.push_back(strings_.substr(at, length));
    at += length;
  }
  if (at != strings_.size()) {
    return absl::InvalidArgumentError("streamed strings are shorter than their stream");
  }
  return Tensor::OfStrings(strings_shape_, std::move(strings));
}

}  // namespace ferry
