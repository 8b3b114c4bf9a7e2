// SPDX-License-Identifier: Apache-2.0
// ControlOutbox: what a session has to tell its client, as frames that are kept until acknowledged.
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

// What a reply has beside itself, because it is large and belongs to others as well: it is not
// copied.
struct SharedBytes {
  // The frame's blob, if the reply has_blob.
  grpc::Slice blob;
  // Values of the reply's entries, each at the place of its entry; empty, or missing at the end,
  // where the entry has its value itself.
  std::vector<grpc::Slice> values;
};

// Not thread-safe: part of a ControlSession. Replies and events are encoded as they come, so that a
// frame is put together by copying bytes; those that come while a frame is being written share the
// next one.
class ControlOutbox final {
 public:
  // REQUIRES: under 2 GiB, as all messages.
  void Add(const v1::Reply& reply);
  void Add(const v1::Event& event);
  void Add(v1::Reply reply, const SharedBytes& shared);
  // `value`: of the event's entry, if it is not empty.
  void Add(v1::Event event, const grpc::Slice& value);

  // Puts the next frame to write into `frame`; false when all are sent.
  bool Next(grpc::ByteBuffer& frame);

  // The client has every frame up to this sequence number.
  void Acknowledge(uint64_t sequence);
  // A new stream: everything that is not acknowledged is to be sent again.
  void Rewind() { sent_ = acknowledged_; }

  // What is not acknowledged, or not sent yet; shared blobs do not count, values do.
  size_t retained_bytes() const { return retained_bytes_ + pending_.size() + pending_value_bytes_; }
  void Clear();

 private:
  // Slices rather than a ByteBuffer, which allocates whenever it is copied.
  struct Frame {
    uint64_t sequence = 0;
    size_t retained_bytes = 0;
    // What was copied.
    grpc::Slice fields;
    // All of it, parts of `fields` and what is shared by turns; empty if there is nothing but
    // `fields`.
    std::vector<grpc::Slice> parts;
  };

  // Each appends to pending_.
  void AppendHead(uint8_t tag, size_t bytes);
  void AppendFields(const google::protobuf::MessageLite& message);
  void AppendEntry(uint8_t tag, const v1::KeyValue& entry, const grpc::Slice& value);
  void AppendShared(const grpc::Slice& bytes);
  void SealIfLarge();
  // Makes a frame of what is pending.
  void Seal();

  // Encoded fields of the frame to come, and what is shared: each before the byte of pending_ at
  // its place.
  std::string pending_;
  std::vector<std::pair<size_t, grpc::Slice>> pending_shared_;
  size_t pending_value_bytes_ = 0;
  // A ring would be tidier; but most sessions have one frame or none, and there may be 4096.
  std::vector<Frame> frames_;
  // Indexes into frames_: before the first, acknowledged; before the second, sent on this stream.
  size_t acknowledged_ = 0;
  size_t sent_ = 0;
  size_t retained_bytes_ = 0;
  uint64_t last_sequence_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_CONTROL_OUTBOX_H_
