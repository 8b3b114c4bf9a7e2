// SPDX-License-Identifier: Apache-2.0
// StagingRing: a few slots of exportable memory of one GPU for staging tensors in pieces.
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
  // Per GPU, for all receivers together. Transfers that exceed it wait for each other. 0: no ring,
  // and tensors are staged through the host.
  size_t budget_bytes = size_t{64} << 20;
  // Larger tensors are sent in pieces of this size.
  size_t slot_bytes = size_t{4} << 20;
  // Whether all slots are allocated when the GPU is opened, and not on first use.
  bool is_reserved = false;
};

struct StagingRingStats {
  int slot_count = 0;
  int free_count = 0;
  int waiting_count = 0;
  int64_t taken = 0;   // ever
  int64_t waited = 0;  // of those, ones that had to wait
};

// Separate from the GPU's arena, so that tensors that cannot be mapped are transferred however full
// the arena is. Slots are allocated on first use. Thread-safe, except for Take.
class StagingRing final : public std::enable_shared_from_this<StagingRing> {
 public:
  using Slot = std::shared_ptr<DeviceBuffer>;
  using TakeCallback = absl::AnyInvocable<void(absl::StatusOr<Slot>) &&>;

  //   executor: the device's; outlives the users of this.
  //   gate: may be null, as for GpuArena.
  static std::shared_ptr<StagingRing> Create(DeviceExecutor& executor,
                                             std::shared_ptr<SyncGate> gate,
                                             StagingRingOptions options);

  // Allocates all slots. On the executor's thread, before the first Take.
  //   Errors: as Take.
  absl::Status Reserve() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns, through `done`, a slot of slot_bytes() that is used by no other caller and no device:
  // inline if one is free; otherwise as soon as one is returned, in FIFO order, on the executor.
  // Must be called on the executor's thread, since it may allocate memory from the driver.
  //   Errors: RESOURCE_EXHAUSTED if the device has no memory for even one slot; as
  //   GpuArena::Create.
  void Take(TakeCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a slot after its receiver has finished with it.
  //   behind: work that may still write to it; may be null.
  void Give(Slot slot, std::shared_ptr<const ReadyEvent> behind) ABSL_LOCKS_EXCLUDED(mu_);

  // The arena of the slots; null before the first one.
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
