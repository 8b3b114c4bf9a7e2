// SPDX-License-Identifier: Apache-2.0
// Encodes a value as frames of ferry.v1.TensorStream, and decodes it.
#ifndef FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FRAMES_H_
#define FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "rendezvous/recv_tensor/tensor_coding.h"
#include "rendezvous/response_cache.h"

namespace ferry {

// Content bytes per frame: enough to make the per-frame cost negligible, few enough to be copied
// while in the caches (benchmarks/recv_tensor_bench: 256 and 512 KiB are equal, 128 KiB and 1 MiB a
// fifth slower).
inline constexpr size_t kFrameBytes = size_t{512} << 10;
// Limit for a received tensor, so that its header alone cannot exhaust memory.
inline constexpr size_t kMaxStreamedBytes = size_t{64} << 30;

// Splits a value into frames that share the tensor's memory. Not thread-safe.
class FrameWriter final {
 public:
  // REQUIRES: frame_bytes is not 0.
  explicit FrameWriter(const ServedValue& value, size_t frame_bytes = kFrameBytes);

  // There is at least one frame.
  bool is_done() const { return is_started_ && sent_bytes_ == content_.size(); }
  // REQUIRES: not done.
  grpc::ByteBuffer Next();

 private:
  const size_t frame_bytes_;
  // The header of the first frame; the tag and length of its content follow.
  std::string header_;
  grpc::Slice content_;
  size_t sent_bytes_ = 0;
  bool is_started_ = false;
};

// Assembles frames; each is copied once, to its final place. Not thread-safe.
class FrameReader final {
 public:
  explicit FrameReader(DecodeTarget target, size_t max_bytes = kMaxStreamedBytes)
      : target_(std::move(target)), max_bytes_(max_bytes) {}

  // Processes the next frame.
  //   Errors: INTERNAL for a malformed or unexpected frame; INVALID_ARGUMENT for an invalid tensor,
  //   or one not of the destination's type and size; RESOURCE_EXHAUSTED above `max_bytes`;
  //   CANCELLED when the gate was closed. The reader is unusable after an error.
  absl::Status Read(grpc::ByteBuffer& frame);

  // Call at the end of the stream.
  //   Errors: INTERNAL naming what is missing; INVALID_ARGUMENT for invalid strings.
  absl::StatusOr<ServedValue> Finish();

  bool has_header() const { return has_header_; }
  // REQUIRES: has_header().
  bool require_ack() const { return value_.require_ack; }

 private:
  absl::Status ReadHeader(google::protobuf::io::CodedInputStream& in);
  absl::Status ReadContent(google::protobuf::io::CodedInputStream& in);
  absl::StatusOr<Tensor> Strings() const;

  const DecodeTarget target_;
  const size_t max_bytes_;
  bool has_header_ = false;
  // Its tensor is allocated once the header was read, unless it holds strings.
  ServedValue value_;
  size_t content_bytes_ = 0;
  size_t received_bytes_ = 0;
  // For strings, which are decoded when all bytes have arrived.
  bool is_strings_ = false;
  Shape strings_shape_;
  std::string strings_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECV_TENSOR_TENSOR_FRAMES_H_
