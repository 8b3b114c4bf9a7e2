// SPDX-License-Identifier: Apache-2.0
// HostArena: warm host memory that can be handed to other processes by its place.
#ifndef FERRY_TENSOR_HOST_ARENA_H_
#define FERRY_TENSOR_HOST_ARENA_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/table_sizes.h"
#include "base/usable_resources.h"
#include "tensor/buffer.h"
#include "tensor/memory_segment.h"

namespace ferry {

struct HostArenaOptions {
  // Of all segments together; what tensors take of it is rounded up to their size class.
  size_t budget_bytes = ShareOfMemory(size_t{4} << 30, 2);
  // Small size classes share a segment of this size among blocks of one class. A larger block has a
  // segment of its own.
  size_t segment_bytes = size_t{32} << 20;
  MemorySegmentOptions memory;
};

struct HostArenaStats {
  size_t mapped_bytes = 0;  // of all segments; counts against the budget
  size_t used_bytes = 0;    // of blocks that are out, rounded up to their class
  int segment_count = 0;
  int block_count = 0;                   // out
  int64_t made_blocks = 0;               // handed out ever
  int64_t reused_blocks = 0;             // of those, ones that were warm
  PageKind pages = PageKind::kOrdinary;  // of the latest segment
  // Of mapped_bytes, by PageKind: a pool may have run out in between.
  std::array<size_t, kPageKindCount> page_bytes = {};
};

// "transparent huge pages", "2 MiB pages from the machine's pool (64 MiB) and 4 KiB pages (2 MiB)",
// "none yet": for people.
std::string DescribePages(const HostArenaStats& stats);

// Thread-safe. Shared by the buffers it made: they may outlive the caller's reference. A buffer's
// place goes to the next user as soon as its last reference is gone; leases keep one.
class HostArena final : public std::enable_shared_from_this<HostArena> {
 public:
  // Where MemorySegment::CheckSupport fails, its memory is private to this process, but still has a
  // place.
  //   Errors: INVALID_ARGUMENT for options that make no sense.
  static absl::StatusOr<std::shared_ptr<HostArena>> Create(HostArenaOptions options);
  ~HostArena();

  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // At least `bytes`, aligned to kBufferAlignment, content undefined. Mostly warm pages; a new
  // segment takes milliseconds.
  //   Errors: RESOURCE_EXHAUSTED naming what is in use and the option, or the kernel's reason.
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes);

  // The memory that `place` lies in; its descriptor, if it has one, is what another process needs.
  // Valid as long as a buffer in it is. REQUIRES: there is one.
  const MemorySegment& memory(const ArenaOffset& place) const;

  // Hears of segments, for as long as what Listen returns lives (and once more, if another thread
  // was faster), with no lock held.
  struct Listener {
    // Of each new one, by a place in it, on the thread that allocates there, before it has its
    // buffer.
    std::function<void(const ArenaOffset& place)> on_new;
    // Of each that has been given back to the machine, by its ArenaOffset::segment, which is not
    // used again: whoever has mapped it may let go of it too. On the thread that gave it back.
    std::function<void(uint32_t segment)> on_retired;
  };
  [[nodiscard]] std::shared_ptr<void> Listen(Listener listener);

  HostArenaStats stats() const;
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const;

  // Gives segments without a buffer back to the machine. Returns how many bytes.
  size_t Trim();

  // The size that a request takes: a power of two or one of three steps between, from 64 bytes on.
  static size_t ClassBytes(size_t bytes);

 private:
  class Block;
  struct Segment;
  struct State;

  explicit HostArena(HostArenaOptions options);

  // `is_new`: in a segment that was made for it.
  absl::StatusOr<std::shared_ptr<Buffer>> AllocateLocked(size_t bytes, bool& is_new);
  absl::StatusOr<Segment*> AddSegment(size_t class_bytes, size_t bytes);
  // Tells of what has been given back since the last time.
  void TellRetired();
  void TellNew(const ArenaOffset& place);
  std::vector<std::shared_ptr<Listener>> Listeners() const;
  void Release(Segment& segment, size_t index);

  const HostArenaOptions options_;
  const std::unique_ptr<State> state_;
};

}  // namespace ferry

#endif  // FERRY_TENSOR_HOST_ARENA_H_
