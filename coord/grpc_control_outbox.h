// SPDX-License-Identifier: Apache-2.0
// ControlOutbox: what a session has to tell its client, as frames that are kept until acknowledged.
#ifndef FERRY_COORD_GRPC_CONTROL_OUTBOX_H_
#define FERRY_COORD_GRPC_CONTROL_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// Not thread-safe: part of a ControlSession. Replies and events are encoded as they come, so that a
// frame is put together by copying bytes; those that come while a frame is being written share the
// next one.
class ControlOutbox final {
 public:
  // REQUIRES: under 2 GiB, as all messages.
  void Add(const v1::Reply& reply) { Append(kRepliesTag, reply); }
  void Add(const v1::Event& event) { Append(kEventsTag, event); }
  // `reply` has has_blob set; `blob` is not copied.
  void Add(const v1::Reply& reply, const grpc::Slice& blob);

  // Puts the next frame to write into `frame`; false when all are sent.
  bool Next(grpc::ByteBuffer& frame);

  // The client has every frame up to this sequence number.
  void Acknowledge(uint64_t sequence);
  // A new stream: everything that is not acknowledged is to be sent again.
  void Rewind() { sent_ = acknowledged_; }

  // What is not acknowledged, or not sent yet; shared blobs do not count.
  size_t retained_bytes() const { return retained_bytes_ + pending_.size(); }
  void Clear();

 private:
  static constexpr uint8_t kRepliesTag = 3 << 3 | 2;
  static constexpr uint8_t kEventsTag = 4 << 3 | 2;

  // Slices rather than a ByteBuffer, which allocates whenever it is copied.
  struct Frame {
    uint64_t sequence = 0;
    bool has_blob = false;
    grpc::Slice fields;
    grpc::Slice blob;
  };

  void Append(uint8_t tag, const google::protobuf::MessageLite& message);
  // Makes a frame of what is pending.
  void Seal(const grpc::Slice* blob);

  // Encoded fields of the frame to come.
  std::string pending_;
  // A ring would be tidier; but most sessions have one frame or none, and there may be 4096.
  std::vector<Frame> frames_;
  // Indexes into frames_: before the first, acknowledged; before the second, sent on this stream.
  size_t acknowledged_ = 0;
  size_t sent_ = 0;
  size_t retained_bytes_ = 0;
  uint64_t last_sequence_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_GRPC_CONTROL_OUTBOX_H_
