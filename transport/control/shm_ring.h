// SPDX-License-Identifier: Apache-2.0
// RingWriter, RingReader: frames from one process to another through memory that both have mapped.
#ifndef FERRY_TRANSPORT_CONTROL_SHM_RING_H_
#define FERRY_TRANSPORT_CONTROL_SHM_RING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry {

// The memory of a ring: a control block, and a power of two of bytes for frames. All zeros is an
// empty ring. A frame is ready when its first word is not zero, so that a reader which waits for it
// fetches one cache line and not two; the reader leaves zeros behind.
inline constexpr size_t kRingControlBytes = 256;

// What a frame takes besides its body, and what its size is rounded up to.
inline constexpr size_t kRingFrameHeader = 8;
inline constexpr size_t kRingFrameAlignment = 16;

// One thread at a time.
class RingWriter final {
 public:
  RingWriter() = default;
  // `memory`: kRingControlBytes and `capacity`, a power of two.
  RingWriter(void* memory, size_t capacity);

  // The largest body.
  size_t max_body() const { return capacity_ / 4 - kRingFrameHeader; }

  // The parts one after the other as one frame; `descriptors` of them follow by another way.
  // False, and nothing is written, if there is no room now. REQUIRES: at most max_body() bytes.
  bool Write(uint16_t type, uint8_t descriptors, absl::Span<const absl::string_view> parts);

  // Tells the reader that descriptors are about to be sent, by that other way: it may look for them
  // before there is a frame. No more than a hint.
  void HintDescriptors();

  // Asks the reader to ring when it has made room; look again for room after this.
  void AskForRoom();
  bool HasRoom(size_t body);
  // Whether the reader has read everything, and has said so (RingReader::Publish).
  bool IsAllRead() const;

 private:
  bool Reserve(size_t frame);

  char* control_ = nullptr;
  char* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t at_ = 0;
  // As far as the reader was when we last looked.
  uint64_t seen_head_ = 0;
  uint32_t hints_ = 0;
};

struct RingFrame {
  uint16_t type = 0;
  uint8_t descriptors = 0;
  // In the ring: the writer may change it at any time if it means us harm.
  absl::string_view body;
};

// One thread at a time.
class RingReader final {
 public:
  RingReader() = default;
  RingReader(void* memory, size_t capacity);

  bool HasFrame();
  // Whether the writer has called HintDescriptors since the last time.
  bool TakeHint();
  // The next frame, which stays there until Pop. REQUIRES: HasFrame().
  //   Errors: INVALID_ARGUMENT for what no writer writes.
  absl::StatusOr<RingFrame> Front();
  void Pop();
  // Gives the room of what was popped to the writer; true if it has asked to be told.
  bool Publish();

 private:
  char* control_ = nullptr;
  char* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t at_ = 0;
  uint64_t published_ = 0;
  // Of the frame at the front.
  size_t front_bytes_ = 0;
  uint32_t seen_hints_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_SHM_RING_H_
