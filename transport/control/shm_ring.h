// SPDX-License-Identifier: Apache-2.0
// RingWriter, RingReader: frames between processes through shared memory.
#ifndef FERRY_TRANSPORT_CONTROL_SHM_RING_H_
#define FERRY_TRANSPORT_CONTROL_SHM_RING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry {

// The memory of a ring: a control block, and a power of two of bytes for frames. All zeros is an
// empty ring. A frame is ready when its first word is not zero, so that a polling reader fetches
// one cache line, not two; the reader zeroes what it releases.
//
// A frame starts at a cache-line boundary, so that one of up to 64 bytes with its header is in one
// line, and that the line which the reader polls holds nothing else. The padding behind the frame
// before it is counted in that one's header. Readers of earlier releases know no padding: a reader
// says in the control block that it does, and until then frames are only aligned to 16 bytes.
inline constexpr size_t kRingControlBytes = 256;

// Size of a frame's header, and the alignment of frames.
inline constexpr size_t kRingFrameHeader = 8;
inline constexpr size_t kRingFrameAlignment = 16;
inline constexpr size_t kRingLine = 64;

// Not thread-safe.
class RingWriter final {
 public:
  RingWriter() = default;
  // `memory`: kRingControlBytes and `capacity`, a power of two.
  RingWriter(void* memory, size_t capacity);

  // The largest body, in bytes.
  size_t max_body() const { return capacity_ / 4 - kRingFrameHeader; }

  // Writes the concatenated parts as one frame, to which `descriptors` descriptors belong that are
  // sent separately. Returns false, and writes nothing, if there is no room now. REQUIRES: at most
  // max_body() bytes.
  bool Write(uint16_t type, uint8_t descriptors, absl::Span<const absl::string_view> parts);

  // Tells the reader that descriptors are about to be sent, so that it may look for them before the
  // frame arrives. Only a hint.
  void HintDescriptors();

  // Requests a notification when the reader has made room; check for room again after this.
  void RequestRoom();
  bool HasRoom(size_t body);
  // True if the reader has read everything and published that (RingReader::Publish).
  bool IsAllRead() const;

 private:
  // The size of a frame at at_, with padding.
  size_t Padded(size_t frame) const;
  bool Reserve(size_t frame);

  char* control_ = nullptr;
  char* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t at_ = 0;
  // The reader's position when last read.
  uint64_t seen_head_ = 0;
  uint32_t hints_ = 0;
  // Changes behind a frame only, so that room which HasRoom has found suffices for Write.
  bool is_padding_ = false;
};

struct RingFrame {
  uint16_t type = 0;
  uint8_t descriptors = 0;
  // In the ring: a malicious writer may change it at any time.
  absl::string_view body;
};

// Not thread-safe.
class RingReader final {
 public:
  RingReader() = default;
  RingReader(void* memory, size_t capacity);

  // True if there is a frame that has not been read. False also if it is at the beginning of the
  // ring, and those at its end have not been released.
  bool HasFrame();
  // Returns true if the writer has called HintDescriptors since the last call.
  bool TakeHint();
  // Returns the next frame, which stays in the ring until Release. REQUIRES: HasFrame() has
  // returned true since the last call.
  //   Errors: INVALID_ARGUMENT for a malformed frame; the ring is of no further use.
  absl::StatusOr<RingFrame> Read();
  // Releases all frames that have been read.
  void Release();
  // Returns the room of released frames to the writer; true if it has requested a notification.
  bool Publish();

 private:
  char* control_ = nullptr;
  char* data_ = nullptr;
  size_t capacity_ = 0;
  // The next frame.
  uint64_t at_ = 0;
  // The first frame that is not released; what is between these two does not wrap around.
  uint64_t released_ = 0;
  uint64_t published_ = 0;
  uint32_t seen_hints_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CONTROL_SHM_RING_H_
