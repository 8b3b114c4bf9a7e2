// SPDX-License-Identifier: Apache-2.0
// PinnedPool: host memory that copies to and from GPUs go through, pinned once.
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
  // Of all segments together. Pinned memory is taken from the machine for good.
  size_t budget_bytes = ShareOfMemory(size_t{1} << 30, 8);
  // Pinned at a time; smaller blocks share it.
  size_t segment_bytes = size_t{16} << 20;
  // How long pinning more may wait for NCCL work to end.
  absl::Duration timeout = absl::Seconds(5);
};

struct PinnedPoolStats {
  size_t pinned_bytes = 0;  // counts against the budget
  size_t used_bytes = 0;    // of blocks that are out, rounded up to their class
  int block_count = 0;      // out
  int64_t made_blocks = 0;
  int64_t reused_blocks = 0;
};

// Usable by every device of the process. Thread-safe. Shared by the buffers it made. A buffer goes
// back at once when its last reference goes: whoever has enqueued a copy keeps one until it is
// done.
class PinnedPool final : public std::enable_shared_from_this<PinnedPool> {
 public:
  //   device: any; its context makes the memory.
  //   gate: may be null.
  //   Errors: INVALID_ARGUMENT for options that make no sense.
  static absl::StatusOr<std::shared_ptr<PinnedPool>> Create(std::shared_ptr<CudaDevice> device,
                                                            std::shared_ptr<SyncGate> gate,
                                                            PinnedPoolOptions options);
  ~PinnedPool();

  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // At least `bytes` of host memory, aligned to 512, content undefined. Pinning a new segment takes
  // milliseconds and may synchronise devices.
  //   Errors: RESOURCE_EXHAUSTED naming what is in use and the option, or the machine's memory;
  //   DEADLINE_EXCEEDED if NCCL work was in flight all through `timeout`, and no larger block
  //   was idle.
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes);

  PinnedPoolStats stats() const;

 private:
  struct State;
  class Block;

  explicit PinnedPool(std::unique_ptr<State> state);
  void Release(uint32_t segment, uint32_t index);

  const std::unique_ptr<State> state_;
};

// Host memory of somebody else, such as a host arena's segment, pinned while this lives, so that
// copies need not go through a pool.
class PinnedRegistration final {
 public:
  // Slow, and may synchronise devices: not while NCCL work is in flight.
  //   data: as long as this lives.
  //   Errors: INTERNAL with the driver's reason; a part may be registered once only.
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
