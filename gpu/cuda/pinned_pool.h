// SPDX-License-Identifier: Apache-2.0
// PinnedPool: reusable pinned host memory for copies to and from GPUs.
#ifndef FERRY_GPU_CUDA_PINNED_POOL_H_
#define FERRY_GPU_CUDA_PINNED_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/usable_resources.h"
#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/sync_gate.h"
#include "tensor/buffer.h"

namespace ferry::cuda {

struct PinnedPoolOptions {
  // Total of all segments. Pinned memory cannot be used by the rest of the machine.
  size_t budget_bytes = ShareOfMemory(size_t{1} << 30, 8);
  // Unit of pinning; smaller blocks share it.
  size_t segment_bytes = size_t{16} << 20;
  // Pinned at once, in units of segment_bytes, and kept, as GpuArenaOptions::reserve_bytes;
  // rounded up to 4096 bytes.
  size_t reserve_bytes = 0;
  // Maximum time for which pinning waits for NCCL work to end.
  absl::Duration timeout = absl::Seconds(5);
};

struct PinnedPoolStats {
  size_t pinned_bytes = 0;    // counts against the budget
  size_t reserved_bytes = 0;  // of those, reserved
  size_t used_bytes = 0;      // of allocated blocks, rounded up to their class
  int block_count = 0;        // allocated
  int64_t made_blocks = 0;
  int64_t reused_blocks = 0;
};

// Usable by every device of the process. Thread-safe. Shared by its buffers. A buffer is returned
// as soon as its last reference is released: the code that enqueues a copy keeps one until it has
// completed.
class PinnedPool final : public std::enable_shared_from_this<PinnedPool> {
 public:
  //   device: any; the memory is allocated in its context.
  //   gate: may be null.
  //   Errors: INVALID_ARGUMENT for invalid options; as Allocate, for what is reserved.
  static absl::StatusOr<std::shared_ptr<PinnedPool>> Create(std::shared_ptr<CudaDevice> device,
                                                            std::shared_ptr<SyncGate> gate,
                                                            PinnedPoolOptions options);
  ~PinnedPool();

  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Returns at least `bytes` of host memory, aligned to 512, uninitialized. Pinning a new segment
  // takes milliseconds and may synchronize devices.
  //   Errors: RESOURCE_EXHAUSTED naming the memory in use and the option, or the machine's memory;
  //   DEADLINE_EXCEEDED if NCCL work was in flight for all of `timeout`, and no larger block was
  //   idle.
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes);

  PinnedPoolStats stats() const;

 private:
  struct State;
  class Block;

  explicit PinnedPool(std::unique_ptr<State> state);
  absl::Status Reserve();
  void Release(uint32_t segment, uint32_t index);

  const std::unique_ptr<State> state_;
};

// Host memory owned by others, such as a host arena's segment, pinned while this exists, so that
// copies need not be staged through a pool.
class PinnedRegistration final {
 public:
  // Slow, and may synchronize devices: not while NCCL work is in flight.
  //   data: must outlive this. Not owned.
  //   Errors: INTERNAL with the driver's reason; no part may be registered twice.
  static absl::StatusOr<std::unique_ptr<PinnedRegistration>> Create(
      std::shared_ptr<CudaDevice> device, void* data, size_t bytes);
  ~PinnedRegistration();

  PinnedRegistration(const PinnedRegistration&) = delete;
  PinnedRegistration& operator=(const PinnedRegistration&) = delete;

 private:
  PinnedRegistration(std::shared_ptr<CudaDevice> device, void* data);

  const std::shared_ptr<CudaDevice> device_;
  void* const data_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_PINNED_POOL_H_
