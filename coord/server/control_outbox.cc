// SPDX-License-Identifier: Apache-2.0
// Encodes and retains frames.
#include "coord/server/control_outbox.h"

#include <algorithm>
#include <cstring>

#include <google/protobuf/io/coded_stream.h>

namespace ferry::coord {
namespace {

using google::protobuf::io::CodedOutputStream;

// Replies are coalesced into one frame up to about this size.
constexpr size_t kFrameBytes = size_t{1} << 20;
// An idle session keeps at most this buffer for its next frame.
constexpr size_t kIdleBytes = 1024;
// Tags of ServerFrame, Reply, Event and KeyValue fields: the number, and the wire type of bytes.
constexpr uint8_t kSequenceTag = 2 << 3;
constexpr uint8_t kRepliesTag = 3 << 3 | 2;
constexpr uint8_t kEventsTag = 4 << 3 | 2;
constexpr uint8_t kBlobTag = 15 << 3 | 2;
constexpr uint8_t kReplyEntriesTag = 5 << 3 | 2;
constexpr uint8_t kEventEntryTag = 3 << 3 | 2;
constexpr uint8_t kValueTag = 2 << 3 | 2;
constexpr size_t kMaxVarintBytes = 10;

// The size of a field with `bytes` of content, including tag and length.
size_t FieldBytes(size_t bytes) { return 1 + CodedOutputStream::VarintSize64(bytes) + bytes; }

size_t EntryBytes(const v1::KeyValue& entry, const grpc::Slice& value) {
  return entry.ByteSizeLong() + (value.size() > 0 ? FieldBytes(value.size()) : 0);
}

}  // namespace

void ControlOutbox::AppendHead(uint8_t tag, size_t bytes) {
  uint8_t head[1 + kMaxVarintBytes] = {tag};
  const uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(bytes, head + 1);
  pending_.append(reinterpret_cast<const char*>(head), static_cast<size_t>(end - head));
}

void ControlOutbox::AppendFields(const google::protobuf::MessageLite& message) {
  const size_t offset = pending_.size();
  pending_.resize(offset + message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(pending_.data()) + offset);
}

void ControlOutbox::AppendShared(const grpc::Slice& bytes) {
  pending_shared_.emplace_back(pending_.size(), bytes);
}

void ControlOutbox::AppendEntry(uint8_t tag, const v1::KeyValue& entry, const grpc::Slice& value) {
  AppendHead(tag, EntryBytes(entry, value));
  AppendFields(entry);
  if (value.size() == 0) return;
  AppendHead(kValueTag, value.size());
  AppendShared(value);
  pending_value_bytes_ += value.size();
}

void ControlOutbox::SealIfLarge() {
  if (pending_.size() + pending_value_bytes_ >= kFrameBytes) Seal();
}

void ControlOutbox::Add(const v1::Reply& reply) {
  AppendHead(kRepliesTag, reply.ByteSizeLong());
  AppendFields(reply);
  SealIfLarge();
}

void ControlOutbox::Add(const v1::Event& event) {
  AppendHead(kEventsTag, event.ByteSizeLong());
  AppendFields(event);
  SealIfLarge();
}

void ControlOutbox::Add(v1::Reply reply, const SharedBytes& shared) {
  const auto value_of = [&shared](int index) {
    const size_t i = static_cast<size_t>(index);
    return i < shared.values.size() ? shared.values[i] : grpc::Slice();
  };
  // The field order is free: all others first, then the entries one by one.
  google::protobuf::RepeatedPtrField<v1::KeyValue> entries;
  entries.Swap(reply.mutable_entries());
  size_t bytes = reply.ByteSizeLong();
  for (int i = 0; i < entries.size(); ++i) bytes += FieldBytes(EntryBytes(entries[i], value_of(i)));
  AppendHead(kRepliesTag, bytes);
  AppendFields(reply);
  for (int i = 0; i < entries.size(); ++i) AppendEntry(kReplyEntriesTag, entries[i], value_of(i));
  if (!reply.has_blob()) return SealIfLarge();
  AppendHead(kBlobTag, shared.blob.size());
  AppendShared(shared.blob);
  Seal();
}

void ControlOutbox::Add(v1::Event event, const grpc::Slice& value) {
  v1::KeyValue entry;
  entry.Swap(event.mutable_entry());
  event.clear_entry();
  AppendHead(kEventsTag, event.ByteSizeLong() + FieldBytes(EntryBytes(entry, value)));
  AppendFields(event);
  AppendEntry(kEventEntryTag, entry, value);
  SealIfLarge();
}

void ControlOutbox::Seal() {
  uint8_t head[1 + kMaxVarintBytes];
  head[0] = kSequenceTag;
  const size_t head_bytes = static_cast<size_t>(
      CodedOutputStream::WriteVarint64ToArray(++last_sequence_, head + 1) - head);
  Frame& frame = frames_.emplace_back();
  frame.sequence = last_sequence_;
  frame.fields = grpc::Slice(head_bytes + pending_.size());
  uint8_t* out = const_cast<uint8_t*>(frame.fields.begin());
  std::memcpy(out, head, head_bytes);
  std::memcpy(out + head_bytes, pending_.data(), pending_.size());
  size_t done = 0;
  for (auto& [place, bytes] : pending_shared_) {
    frame.parts.push_back(frame.fields.sub(done, head_bytes + place));
    frame.parts.push_back(std::move(bytes));
    done = head_bytes + place;
  }
  if (!frame.parts.empty() && done < frame.fields.size()) {
    frame.parts.push_back(frame.fields.sub(done, frame.fields.size()));
  }
  frame.retained_bytes = frame.fields.size() + pending_value_bytes_;
  retained_bytes_ += frame.retained_bytes;
  pending_.clear();
  pending_shared_ = {};
  pending_value_bytes_ = 0;
  if (pending_.capacity() > kIdleBytes) pending_.shrink_to_fit();
}

bool ControlOutbox::Next(grpc::ByteBuffer& frame) {
  if (sent_ == frames_.size() && !pending_.empty()) Seal();
  if (sent_ == frames_.size()) return false;
  const Frame& next = frames_[sent_++];
  const bool is_whole = next.parts.empty();
  grpc::ByteBuffer(is_whole ? &next.fields : next.parts.data(), is_whole ? 1 : next.parts.size())
      .Swap(&frame);
  return true;
}

void ControlOutbox::Acknowledge(uint64_t sequence) {
  while (acknowledged_ < frames_.size() && frames_[acknowledged_].sequence <= sequence) {
    Frame& frame = frames_[acknowledged_++];
    retained_bytes_ -= frame.retained_bytes;
    frame.fields = grpc::Slice();
    frame.parts = {};
  }
  sent_ = std::max(sent_, acknowledged_);
  // Compacts when half of it is acknowledged, so that moving costs no more than what was removed.
  if (acknowledged_ * 2 < frames_.size() || acknowledged_ == 0) return;
  frames_.erase(frames_.begin(), frames_.begin() + static_cast<ptrdiff_t>(acknowledged_));
  sent_ -= acknowledged_;
  acknowledged_ = 0;
}

void ControlOutbox::Clear() {
  pending_ = {};
  pending_shared_ = {};
  pending_value_bytes_ = 0;
  frames_ = {};
  acknowledged_ = 0;
  sent_ = 0;
  retained_bytes_ = 0;
}

}  // namespace ferry::coord
