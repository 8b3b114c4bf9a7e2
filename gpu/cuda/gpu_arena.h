// SPDX-License-Identifier: Apache-2.0
// GpuArena: memory of one GPU that other processes can map, in size classes that are used again.
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
  // Of all segments together; what buffers take of it is rounded up to their size class.
  size_t budget_bytes = size_t{2} << 30;
  // Blocks of small size classes share a segment of this size; a larger block has its own.
  size_t segment_bytes = size_t{32} << 20;
  // What raises the budget, for messages.
  std::string budget_option = "--gpu-arena-budget-bytes, in programs GpuArenaOptions::budget_bytes";
  // How long getting more memory from the driver may wait for NCCL work to end.
  absl::Duration timeout = absl::Seconds(5);
  // Devices of this process, besides its own, whose kernels and copies may use the memory.
  std::vector<int> peer_ordinals;
};

struct GpuArenaStats {
  size_t mapped_bytes = 0;  // of all segments; counts against the budget
  size_t used_bytes = 0;    // of blocks that are out, rounded up to their class
  int segment_count = 0;
  int block_count = 0;        // out, also those that have come back before their uses were done
  int pending_count = 0;      // of those, the latter
  int64_t made_blocks = 0;    // handed out ever
  int64_t reused_blocks = 0;  // of those, ones that had been out before
};

// Physical memory made with cuMemCreate, exportable as descriptors; cuMemAlloc and legacy handles
// where the device lacks that. Thread-safe. Shared by the buffers it made: they may outlive the
// caller's reference. A block is used again when its last reference has gone and every use that
// was added to it is done.
class GpuArena final : public std::enable_shared_from_this<GpuArena> {
 public:
  //   gate: may be null: then nothing here ever waits for another process.
  //   Errors: INVALID_ARGUMENT for options that make no sense; RESOURCE_EXHAUSTED if the device has
  //   no memory at all just now; INTERNAL.
  static absl::StatusOr<std::shared_ptr<GpuArena>> Create(std::shared_ptr<CudaDevice> device,
                                                          std::shared_ptr<SyncGate> gate,
                                                          GpuArenaOptions options);
  ~GpuArena();

  GpuArena(const GpuArena&) = delete;
  GpuArena& operator=(const GpuArena&) = delete;

  // At least `bytes`, aligned to 512, content undefined. A block that is used again costs
  // microseconds; a new segment milliseconds, and may synchronise the device.
  //   Errors: RESOURCE_EXHAUSTED naming what is in use and the option, or the device's memory;
  //   DEADLINE_EXCEEDED if NCCL work was in flight all through `timeout`.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes);
  // The same of memory that is mapped and free: never waits, asks the driver for nothing. Null if
  // there is none.
  std::shared_ptr<DeviceBuffer> TryAllocate(size_t bytes);

  // What a peer needs to map the segment of `buffer`, with the range of the buffer in it; no CUDA
  // call. The descriptor of the memory (kPosixFd) is apart: a peer that has the segment needs none.
  //   REQUIRES: a buffer of this arena.
  IpcDescriptor Describe(const Buffer& buffer) const;
  // Not valid for kLegacyHandle, which needs none.
  absl::StatusOr<UniqueFd> ExportSegment(const Buffer& buffer) const;

  // Keeps the segment of `buffer` from being given back to the driver while a peer has it mapped,
  // as it does from the first message that names it until its release: buffers come and go
  // meanwhile.
  std::shared_ptr<const HeldSegment> HoldSegment(const Buffer& buffer);

  // How its memory can be mapped by other processes, and if not, or not by descriptors, why.
  ExportBy export_by() const;
  const std::string& fallback_reason() const;

  // Makes blocks whose uses are done available, as Allocate does too. Returns their bytes.
  size_t Collect();
  // Gives idle segments back; may synchronise the device, so it waits for the gate. Returns bytes.
  size_t Trim();

  GpuArenaStats stats() const;
  CudaDevice& device() const;

 private:
  friend class HeldSegment;
  struct State;

  explicit GpuArena(std::unique_ptr<State> state);
  std::shared_ptr<DeviceBuffer> BufferOf(ArenaSegment& segment, const TakenBlock& block,
                                         size_t bytes);
  void Release(ArenaSegment& segment, uint32_t index, DeviceBuffer::Uses uses);
  absl::StatusOr<UniqueFd> Export(uint32_t segment) const;

  const std::unique_ptr<State> state_;
};

// A segment that is not given back while this lives.
class HeldSegment final {
 public:
  ~HeldSegment();

  HeldSegment(const HeldSegment&) = delete;
  HeldSegment& operator=(const HeldSegment&) = delete;

  // As GpuArena::ExportSegment.
  absl::StatusOr<UniqueFd> Export() const;
  // Of the whole segment.
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
