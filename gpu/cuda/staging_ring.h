// SPDX-License-Identifier: Apache-2.0
// StagingRing: a few slots of exportable memory of one GPU that tensors go through in pieces.
#ifndef FERRY_GPU_CUDA_STAGING_RING_H_
#define FERRY_GPU_CUDA_STAGING_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "gpu/cuda/device_executor.h"
#include "gpu/cuda/gpu_arena.h"

namespace ferry::cuda {

struct StagingRingOptions {
  // Of each GPU, for all receivers together. Beyond it transfers wait for each other. 0: there is
  // no ring, and they go by way of the host.
  size_t budget_bytes = size_t{64} << 20;
  // A larger tensor goes in pieces of this size.
  size_t slot_bytes = size_t{4} << 20;
};

struct StagingRingStats {
  int slot_count = 0;
  int free_count = 0;
  int waiting_count = 0;
  int64_t taken = 0;   // ever
  int64_t waited = 0;  // of those, ones that had to wait
};

// Memory of its own, so that however full the arena of the GPU is, what cannot be mapped gets
// through. Slots come into being when they are first needed. Thread-safe, but for Take.
class StagingRing final : public std::enable_shared_from_this<StagingRing> {
 public:
  using Slot = std::shared_ptr<DeviceBuffer>;
  using TakeCallback = absl::AnyInvocable<void(absl::StatusOr<Slot>) &&>;

  //   executor: of the device; outlives what uses this.
  //   gate: may be null, as for GpuArena.
  static std::shared_ptr<StagingRing> Create(DeviceExecutor& executor,
                                             std::shared_ptr<SyncGate> gate,
                                             StagingRingOptions options);

  // A slot of slot_bytes(), which nobody else has and no device uses: at once and inside if there
  // is one; otherwise as soon as one comes back, in the order of asking, on the executor. On the
  // executor's thread only, since it may get memory from the driver.
  //   Errors: RESOURCE_EXHAUSTED if the device has no memory for even one slot; as
  //   GpuArena::Create.
  void Take(TakeCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  // Back from its receiver.
  //   behind: what may still be writing to it; may be null.
  void Give(Slot slot, std::shared_ptr<const ReadyEvent> behind) ABSL_LOCKS_EXCLUDED(mu_);

  // That slots lie in; null before the first one.
  std::shared_ptr<GpuArena> arena() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t slot_bytes() const { return options_.slot_bytes; }
  StagingRingStats stats() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  StagingRing(DeviceExecutor& executor, std::shared_ptr<SyncGate> gate, StagingRingOptions options)
      : executor_(executor), gate_(std::move(gate)), options_(options) {}

  absl::StatusOr<Slot> MakeSlot() ABSL_LOCKS_EXCLUDED(mu_);

  DeviceExecutor& executor_;
  const std::shared_ptr<SyncGate> gate_;
  const StagingRingOptions options_;
  mutable absl::Mutex mu_;
  std::shared_ptr<GpuArena> arena_ ABSL_GUARDED_BY(mu_);
  std::vector<Slot> free_ ABSL_GUARDED_BY(mu_);
  std::deque<TakeCallback> waiting_ ABSL_GUARDED_BY(mu_);
  StagingRingStats stats_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_STAGING_RING_H_
