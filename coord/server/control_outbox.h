// SPDX-License-Identifier: Apache-2.0
// ControlOutbox: a session's outgoing frames, retained until acknowledged.
#ifndef FERRY_COORD_SERVER_CONTROL_OUTBOX_H_
#define FERRY_COORD_SERVER_CONTROL_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "proto/ferry_control.pb.h"

namespace ferry::coord {

// Large parts of a reply that are shared with others, and so not copied.
struct SharedBytes {
  // The frame's blob, if the reply has_blob.
  grpc::Slice blob;
  // Values of the reply's entries, by entry index; empty, or missing at the end, where the entry
  // has its value itself.
  std::vector<grpc::Slice> values;
};

// Not thread-safe: part of a ControlDelivery. Replies and events are encoded as they are added, so
// that building a frame only copies bytes; those added while a frame is being written share the
// next one.
class ControlOutbox final {
 public:
  // REQUIRES: under 2 GiB, as all messages.
  void Add(const v1::Reply& reply);
  void Add(const v1::Event& event);
  void Add(v1::Reply reply, const SharedBytes& shared);
  // `value`: the value of the event's entry, unless empty.
  void Add(v1::Event event, const grpc::Slice& value);

  // Sets `frame` to the next frame to write; returns false when all are sent.
  bool Next(grpc::ByteBuffer& frame);

  // The client has received every frame up to this sequence number.
  void Acknowledge(uint64_t sequence);
  // For a new stream: sends everything unacknowledged again.
  void Rewind() { sent_ = acknowledged_; }

  // Unacknowledged and unsent bytes; shared blobs do not count, values do.
  size_t retained_bytes() const { return retained_bytes_ + pending_.size() + pending_value_bytes_; }
  void Clear();

 private:
  // Slices rather than a ByteBuffer, which allocates on every copy.
  struct Frame {
    uint64_t sequence = 0;
    size_t retained_bytes = 0;
    // The copied part.
    grpc::Slice fields;
    // The whole frame, alternating parts of `fields` and shared slices; empty if there is nothing
    // but `fields`.
    std::vector<grpc::Slice> parts;
  };

  // Each appends to pending_.
  void AppendHead(uint8_t tag, size_t bytes);
  void AppendFields(const google::protobuf::MessageLite& message);
  void AppendEntry(uint8_t tag, const v1::KeyValue& entry, const grpc::Slice& value);
  void AppendShared(const grpc::Slice& bytes);
  void SealIfLarge();
  // Makes a frame of the pending fields.
  void Seal();

  // Encoded fields of the next frame, and shared slices: each goes before the byte of pending_ at
  // its offset.
  std::string pending_;
  std::vector<std::pair<size_t, grpc::Slice>> pending_shared_;
  size_t pending_value_bytes_ = 0;
  // Not a ring: most sessions have at most one frame, and there may be 4096 sessions.
  std::vector<Frame> frames_;
  // Indexes into frames_: frames before the first are acknowledged, before the second sent on this
  // stream.
  size_t acknowledged_ = 0;
  size_t sent_ = 0;
  size_t retained_bytes_ = 0;
  uint64_t last_sequence_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_OUTBOX_H_
