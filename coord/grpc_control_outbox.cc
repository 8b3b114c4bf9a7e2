// SPDX-License-Identifier: Apache-2.0
// Encoding and keeping of frames.
#include "coord/grpc_control_outbox.h"

#include <algorithm>
#include <cstring>

#include <google/protobuf/io/coded_stream.h>

namespace ferry::coord {
namespace {

using google::protobuf::io::CodedOutputStream;

// Replies are gathered into one frame up to about this size.
constexpr size_t kFrameBytes = size_t{1} << 20;
// An idle session keeps no more room than this for its next frame.
constexpr size_t kIdleBytes = 1024;
// ServerFrame's other fields.
constexpr uint8_t kSequenceTag = 2 << 3;
constexpr uint8_t kBlobTag = 15 << 3 | 2;
constexpr size_t kMaxVarintBytes = 10;

}  // namespace

void ControlOutbox::Append(uint8_t tag, const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  const size_t offset = pending_.size();
  pending_.resize(offset + 1 + CodedOutputStream::VarintSize64(size) + size);
  uint8_t* out = reinterpret_cast<uint8_t*>(pending_.data()) + offset;
  *out++ = tag;
  out = CodedOutputStream::WriteVarint64ToArray(size, out);
  message.SerializeWithCachedSizesToArray(out);
  if (pending_.size() >= kFrameBytes) Seal(nullptr);
}

void ControlOutbox::Add(const v1::Reply& reply, const grpc::Slice& blob) {
  Append(kRepliesTag, reply);
  Seal(&blob);
}

void ControlOutbox::Seal(const grpc::Slice* blob) {
  uint8_t head[1 + kMaxVarintBytes];
  head[0] = kSequenceTag;
  const size_t head_bytes = static_cast<size_t>(
      CodedOutputStream::WriteVarint64ToArray(++last_sequence_, head + 1) - head);
  uint8_t tail[1 + kMaxVarintBytes];
  size_t tail_bytes = 0;
  if (blob != nullptr) {
    tail[0] = kBlobTag;
    tail_bytes =
        static_cast<size_t>(CodedOutputStream::WriteVarint64ToArray(blob->size(), tail + 1) - tail);
  }
  Frame& frame = frames_.emplace_back();
  frame.sequence = last_sequence_;
  frame.fields = grpc::Slice(head_bytes + pending_.size() + tail_bytes);
  uint8_t* out = const_cast<uint8_t*>(frame.fields.begin());
  std::memcpy(out, head, head_bytes);
  std::memcpy(out + head_bytes, pending_.data(), pending_.size());
  std::memcpy(out + head_bytes + pending_.size(), tail, tail_bytes);
  if (blob != nullptr) {
    frame.blob = *blob;
    frame.has_blob = true;
  }
  retained_bytes_ += frame.fields.size();
  pending_.clear();
  if (pending_.capacity() > kIdleBytes) pending_.shrink_to_fit();
}

bool ControlOutbox::Next(grpc::ByteBuffer& frame) {
  if (sent_ == frames_.size() && !pending_.empty()) Seal(nullptr);
  if (sent_ == frames_.size()) return false;
  const Frame& next = frames_[sent_++];
  const grpc::Slice slices[] = {next.fields, next.blob};
  grpc::ByteBuffer(slices, next.has_blob ? 2 : 1).Swap(&frame);
  return true;
}

void ControlOutbox::Acknowledge(uint64_t sequence) {
  while (acknowledged_ < frames_.size() && frames_[acknowledged_].sequence <= sequence) {
    Frame& frame = frames_[acknowledged_++];
    retained_bytes_ -= frame.fields.size();
    frame.fields = grpc::Slice();
    frame.blob = grpc::Slice();
  }
  sent_ = std::max(sent_, acknowledged_);
  // Half of it is empty: moving the rest up costs no more than what was taken off.
  if (acknowledged_ * 2 < frames_.size() || acknowledged_ == 0) return;
  frames_.erase(frames_.begin(), frames_.begin() + static_cast<ptrdiff_t>(acknowledged_));
  sent_ -= acknowledged_;
  acknowledged_ = 0;
}

void ControlOutbox::Clear() {
  pending_ = {};
  frames_ = {};
  acknowledged_ = 0;
  sent_ = 0;
  retained_bytes_ = 0;
}

}  // namespace ferry::coord
