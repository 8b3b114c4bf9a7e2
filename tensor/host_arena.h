// SPDX-License-Identifier: Apache-2.0
// HostArena: pre-faulted host memory that other processes can map and address by offset.
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
  // The limit over all segments, in bytes; a tensor counts as its size class.
  size_t budget_bytes = ShareOfMemory(size_t{4} << 30, 2);
  // Size in bytes of a segment whose blocks of one small size class share it. A larger block has
  // its own segment.
  size_t segment_bytes = size_t{32} << 20;
  MemorySegmentOptions memory;
};

struct HostArenaStats {
  size_t mapped_bytes = 0;  // of all segments; counts against the budget
  size_t used_bytes = 0;    // of allocated blocks, rounded up to their class
  int segment_count = 0;
  int block_count = 0;                   // allocated now
  int64_t made_blocks = 0;               // allocated since creation
  int64_t reused_blocks = 0;             // of those, reused ones
  PageKind pages = PageKind::kOrdinary;  // of the latest segment
  // `mapped_bytes` by PageKind: the huge page pool may have run out between segments.
  std::array<size_t, kPageKindCount> page_bytes = {};
};

// "transparent huge pages", "2 MiB pages from the machine's pool (64 MiB) and 4 KiB pages (2
// MiB)", "none yet": for logs and reports.
std::string DescribePages(const HostArenaStats& stats);

// Thread-safe. Kept alive by its buffers, which may outlive the caller's reference. A buffer's
// offset is reused as soon as its last reference is released; leases hold a reference.
class HostArena final : public std::enable_shared_from_this<HostArena> {
 public:
  // Where MemorySegment::CheckSupport fails, the memory is private to this process, but still
  // addressed by offset.
  //   Errors: INVALID_ARGUMENT for inconsistent options.
  static absl::StatusOr<std::shared_ptr<HostArena>> Create(HostArenaOptions options);
  ~HostArena();

  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Allocates at least `bytes`, aligned to kBufferAlignment; the content is undefined. Usually
  // reuses faulted-in pages; a new segment takes milliseconds.
  //   Errors: RESOURCE_EXHAUSTED naming what is in use and the option, or the kernel's reason.
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes);

  // The segment that contains `at`; another process needs its descriptor, if it has one. Valid
  // as long as a buffer in it. REQUIRES: there is one.
  const MemorySegment& memory(const ArenaOffset& at) const;

  // Callbacks for segments, called with no lock held while the handle that Listen returns lives
  // (and possibly once more, if another thread is already calling).
  struct Listener {
    // A segment was created; `at` lies in it. Called on the allocating thread, before it gets
    // its buffer.
    std::function<void(const ArenaOffset& at)> on_new;
    // A segment, by its ArenaOffset::segment, was unmapped; the number is not reused, so peers may
    // unmap it too. Called on the thread that unmapped it.
    std::function<void(uint32_t segment)> on_retired;
  };
  [[nodiscard]] std::shared_ptr<void> Listen(Listener listener);

  HostArenaStats stats() const;
  // The sizes of all internal tables; for tests and debugging.
  TableSizes InnerTableSizes() const;

  // Unmaps segments without a buffer. Returns the number of bytes released.
  size_t Trim();

  // The size that a request is rounded up to: a power of two or one of three steps between, from
  // 64 bytes on.
  static size_t ClassBytes(size_t bytes);

 private:
  class Block;
  struct Segment;
  struct State;

  explicit HostArena(HostArenaOptions options);

  // `is_new`: set if a segment was created for it.
  absl::StatusOr<std::shared_ptr<Buffer>> AllocateLocked(size_t bytes, bool& is_new);
  absl::StatusOr<Segment*> AddSegment(size_t class_bytes, size_t bytes);
  // Notifies listeners of the segments retired since the last call.
  void NotifyRetiredSegments();
  void NotifyNewSegment(const ArenaOffset& at);
  std::vector<std::shared_ptr<Listener>> Listeners() const;
  void Release(Segment& segment, size_t index);

  const HostArenaOptions options_;
  const std::unique_ptr<State> state_;
};

}  // namespace ferry

#endif  // FERRY_TENSOR_HOST_ARENA_H_
