// SPDX-License-Identifier: Apache-2.0
// Frames in a ring; a frame is ready when its first word is not zero.
#include "transport/control/shm_ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/fence.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

// Marks the rest of the ring as unused: continue at its beginning.
constexpr uint16_t kSkip = 0xFFFF;

struct RingFrameHead {
  uint32_t bytes;  // of the whole frame, without the padding behind it
  uint16_t type;
  uint8_t descriptors;
  // Behind the frame, in units of the alignment; less than a line.
  uint8_t padding;
};
static_assert(sizeof(RingFrameHead) == kRingFrameHeader);

// Each in its own cache line.
std::atomic<uint64_t>& Head(char* control) {
  return *reinterpret_cast<std::atomic<uint64_t>*>(control);
}
std::atomic<uint32_t>& Hints(char* control) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(control + 64);
}
std::atomic<uint32_t>& WantsRoom(char* control) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(control + 128);
}
// Not zero if the reader understands padding.
std::atomic<uint32_t>& TakesPadding(char* control) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(control + 192);
}
std::atomic<uint32_t>& Ready(char* frame) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(frame);
}

size_t Align(size_t bytes) {
  return (bytes + kRingFrameAlignment - 1) / kRingFrameAlignment * kRingFrameAlignment;
}

}  // namespace

RingWriter::RingWriter(void* memory, size_t capacity)
    : control_(static_cast<char*>(memory)),
      data_(control_ + kRingControlBytes),
      capacity_(capacity),
      is_padding_(TakesPadding(control_).load(std::memory_order_relaxed) != 0) {}

size_t RingWriter::Padded(size_t frame) const {
  if (!is_padding_) return frame;
  // A frame that does not fit behind at_ begins with the ring, whose size is a multiple of a line.
  const size_t offset = at_ & (capacity_ - 1);
  const size_t end = frame <= capacity_ - offset ? offset + frame : frame;
  return frame + (kRingLine - end % kRingLine) % kRingLine;
}

bool RingWriter::Reserve(size_t frame) {
  const size_t to_end = capacity_ - (at_ & (capacity_ - 1));
  const size_t needed = frame <= to_end ? frame : frame + to_end;
  if (at_ + needed - seen_head_ > capacity_) {
    seen_head_ = Head(control_).load(std::memory_order_acquire);
    if (at_ + needed - seen_head_ > capacity_) return false;
  }
  return true;
}

bool RingWriter::HasRoom(size_t body) { return Reserve(Padded(Align(kRingFrameHeader + body))); }

bool RingWriter::IsAllRead() const { return Head(control_).load(std::memory_order_acquire) == at_; }

bool RingWriter::Write(uint16_t type, uint8_t descriptors,
                       absl::Span<const absl::string_view> parts) {
  size_t bytes = kRingFrameHeader;
  for (const absl::string_view part : parts) bytes += part.size();
  FERRY_CHECK(bytes <= capacity_ / 4);
  const size_t without_padding = Align(bytes);
  const size_t frame = Padded(without_padding);
  if (!Reserve(frame)) return false;
  size_t offset = at_ & (capacity_ - 1);
  if (const size_t to_end = capacity_ - offset; frame > to_end) {
    const RingFrameHead skip = {static_cast<uint32_t>(to_end), kSkip, 0, 0};
    std::memcpy(data_ + offset + sizeof(skip.bytes), &skip.type, sizeof(skip) - sizeof(skip.bytes));
    Ready(data_ + offset).store(skip.bytes, std::memory_order_release);
    at_ += to_end;
    offset = 0;
  }
  char* const begin = data_ + offset;
  const RingFrameHead head = {
      static_cast<uint32_t>(bytes), type, descriptors,
      static_cast<uint8_t>((frame - without_padding) / kRingFrameAlignment)};
  std::memcpy(begin + sizeof(head.bytes), &head.type, sizeof(head) - sizeof(head.bytes));
  char* to = begin + sizeof(head);
  for (const absl::string_view part : parts) {
    if (!part.empty()) std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  Ready(begin).store(head.bytes, std::memory_order_release);
  at_ += frame;
  if (!is_padding_) is_padding_ = TakesPadding(control_).load(std::memory_order_relaxed) != 0;
  return true;
}

void RingWriter::HintDescriptors() { Hints(control_).store(++hints_, std::memory_order_relaxed); }

void RingWriter::RequestRoom() {
  WantsRoom(control_).store(1, std::memory_order_relaxed);
  FullFence();
}

RingReader::RingReader(void* memory, size_t capacity)
    : control_(static_cast<char*>(memory)),
      data_(control_ + kRingControlBytes),
      capacity_(capacity) {
  TakesPadding(control_).store(1, std::memory_order_relaxed);
}

bool RingReader::HasFrame() {
  while (true) {
    const size_t offset = at_ & (capacity_ - 1);
    // In the next round frames that have not been released would be found again, and Release
    // zeroes one contiguous piece.
    if (offset == 0 && at_ != released_) return false;
    char* const begin = data_ + offset;
    const uint32_t bytes = Ready(begin).load(std::memory_order_acquire);
    if (bytes == 0) return false;
    uint16_t type = 0;
    std::memcpy(&type, begin + sizeof(bytes), sizeof(type));
    const size_t to_end = capacity_ - offset;
    if (type != kSkip || bytes != to_end) return true;
    if (at_ != released_) return false;
    at_ += to_end;
    Release();
  }
}

bool RingReader::TakeHint() {
  const uint32_t hints = Hints(control_).load(std::memory_order_relaxed);
  return std::exchange(seen_hints_, hints) != hints;
}

absl::StatusOr<RingFrame> RingReader::Read() {
  char* const begin = data_ + (at_ & (capacity_ - 1));
  RingFrameHead head;
  head.bytes = Ready(begin).load(std::memory_order_acquire);
  std::memcpy(&head.type, begin + sizeof(head.bytes), sizeof(head) - sizeof(head.bytes));
  const size_t to_end = static_cast<size_t>(data_ + capacity_ - begin);
  const size_t padding = head.padding * kRingFrameAlignment;
  if (head.bytes < sizeof(head) || head.bytes > std::min(to_end, capacity_ / 4) ||
      head.type == kSkip) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer's ring holds a frame of ", head.bytes, " bytes"));
  }
  if (padding >= kRingLine || padding > to_end - Align(head.bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer's ring holds a frame with ", padding, " bytes of padding"));
  }
  at_ += Align(head.bytes) + padding;
  return RingFrame{head.type, head.descriptors, {begin + sizeof(head), head.bytes - sizeof(head)}};
}

void RingReader::Release() {
  std::memset(data_ + (released_ & (capacity_ - 1)), 0, at_ - released_);
  released_ = at_;
  // Also publish within a long run of frames, so that the writer does not stall.
  if (at_ - published_ >= capacity_ / 4) {
    Head(control_).store(at_, std::memory_order_release);
    published_ = at_;
  }
}

bool RingReader::Publish() {
  if (published_ != released_) {
    Head(control_).store(released_, std::memory_order_release);
    published_ = released_;
  }
  FullFence();
  return WantsRoom(control_).load(std::memory_order_relaxed) != 0 &&
         WantsRoom(control_).exchange(0, std::memory_order_relaxed) != 0;
}

}  // namespace ferry
