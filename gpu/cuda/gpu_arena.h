// SPDX-License-Identifier: Apache-2.0
// GpuArena: reusable memory of one GPU, in size classes, that other processes can map.
#ifndef FERRY_GPU_CUDA_GPU_ARENA_H_
#define FERRY_GPU_CUDA_GPU_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/device_buffer.h"
#include "gpu/cuda/ipc_export.h"
#include "gpu/cuda/sync_gate.h"
#include "tensor/buffer.h"

namespace ferry::cuda {

struct ArenaSegment;
struct TakenBlock;
class HeldSegment;

struct GpuArenaOptions {
  // Total of all segments; buffers are rounded up to their size class.
  size_t budget_bytes = size_t{2} << 30;
  // Blocks of small size classes share a segment of this size; a larger block has its own.
  size_t segment_bytes = size_t{32} << 20;
  // Created at once, in segments of reserve_segment_bytes, and never given back to the driver. A
  // buffer of up to that size is found in them without a call that may synchronize the device, as
  // long as they have room; each segment has buffers of one size class at a time. Both are rounded
  // up to the driver's granularity, 2 MiB.
  size_t reserve_bytes = 0;
  size_t reserve_segment_bytes = size_t{32} << 20;
  // The option that raises the budget, for messages.
  std::string budget_option = "--gpu-arena-budget-bytes, in programs GpuArenaOptions::budget_bytes";
  // Maximum time for which an allocation from the driver waits for NCCL work to end.
  absl::Duration timeout = absl::Seconds(5);
  // Devices of this process, besides its own, whose kernels and copies may access the memory.
  std::vector<int> peer_ordinals;
};

struct GpuArenaStats {
  size_t mapped_bytes = 0;    // of all segments; counts against the budget
  size_t reserved_bytes = 0;  // of those, in reserved segments
  size_t used_bytes = 0;      // of allocated blocks, rounded up to their class
  int segment_count = 0;
  int block_count = 0;        // allocated, or released with uses outstanding
  int pending_count = 0;      // of those, released with uses outstanding
  int64_t made_blocks = 0;    // allocations ever
  int64_t reused_blocks = 0;  // of those, allocations of a used block
};

// Physical memory created by cuMemCreate, exportable as file descriptors; cuMemAlloc and legacy
// handles if the device lacks that. Thread-safe. Shared by its buffers, which may outlive the
// caller's reference. A block is reused once its last reference has been released and every use
// that was added to it has completed.
class GpuArena final : public std::enable_shared_from_this<GpuArena> {
 public:
  //   gate: may be null: then nothing here ever waits for another process.
  //   Errors: INVALID_ARGUMENT for invalid options; RESOURCE_EXHAUSTED if the device has no free
  //   memory at all at present, or not what is reserved; DEADLINE_EXCEEDED if NCCL work was in
  //   flight for all of `timeout`; INTERNAL.
  static absl::StatusOr<std::shared_ptr<GpuArena>> Create(std::shared_ptr<CudaDevice> device,
                                                          std::shared_ptr<SyncGate> gate,
                                                          GpuArenaOptions options);
  ~GpuArena();

  GpuArena(const GpuArena&) = delete;
  GpuArena& operator=(const GpuArena&) = delete;

  // Returns at least `bytes`, aligned to 512, uninitialized. A reused block costs microseconds; a
  // new segment milliseconds, and may synchronize the device.
  //   Errors: RESOURCE_EXHAUSTED naming the memory in use and the option, or the device's memory;
  //   DEADLINE_EXCEEDED if NCCL work was in flight for all of `timeout`.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes);
  // The same from mapped, free memory only: never blocks and does not call the driver. Null if
  // there is none.
  std::shared_ptr<DeviceBuffer> TryAllocate(size_t bytes);

  // Returns the descriptor with which a peer maps the segment of `buffer`, and the buffer's range
  // in it; makes no CUDA call. The file descriptor (kPosixFd) is separate: a peer that has mapped
  // the segment needs none.
  //   REQUIRES: a buffer of this arena.
  IpcDescriptor Describe(const Buffer& buffer) const;
  // Not valid for kLegacyHandle, which needs none.
  absl::StatusOr<UniqueFd> ExportSegment(const Buffer& buffer) const;

  // Keeps the segment of `buffer` from being returned to the driver while a peer has it mapped:
  // from the first message that names it until the peer's release, whatever buffers are allocated
  // in it meanwhile.
  std::shared_ptr<const HeldSegment> HoldSegment(const Buffer& buffer);

  // Whether the device of this ordinal, of this process, can access all of the memory.
  bool IsMappedFor(int ordinal) const;

  // How other processes can map its memory, and if not, or not by file descriptors, why.
  ExportBy export_by() const;
  const std::string& fallback_reason() const;

  // Makes blocks whose uses have completed available, as Allocate does too. Returns their bytes.
  size_t Collect();
  // Releases idle segments; may synchronize the device, so it waits for the gate. Returns their
  // bytes.
  size_t Trim();

  GpuArenaStats stats() const;
  CudaDevice& device() const;

 private:
  friend class HeldSegment;
  struct State;

  explicit GpuArena(std::unique_ptr<State> state);
  absl::Status Reserve();
  std::shared_ptr<DeviceBuffer> BufferOf(ArenaSegment& segment, const TakenBlock& block,
                                         size_t bytes);
  void Release(ArenaSegment& segment, uint32_t index, DeviceBuffer::Uses uses);
  absl::StatusOr<UniqueFd> Export(uint32_t segment) const;

  const std::unique_ptr<State> state_;
};

// Keeps a segment from being released while it exists.
class HeldSegment final {
 public:
  ~HeldSegment();

  HeldSegment(const HeldSegment&) = delete;
  HeldSegment& operator=(const HeldSegment&) = delete;

  // As GpuArena::ExportSegment.
  absl::StatusOr<UniqueFd> Export() const;
  // Descriptor of the whole segment.
  const IpcDescriptor& descriptor() const { return descriptor_; }

 private:
  friend class GpuArena;
  HeldSegment(std::shared_ptr<GpuArena> arena, uint32_t segment, const IpcDescriptor& descriptor)
      : arena_(std::move(arena)), segment_(segment), descriptor_(descriptor) {}

  const std::shared_ptr<GpuArena> arena_;
  const uint32_t segment_;
  const IpcDescriptor descriptor_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_GPU_ARENA_H_
