// SPDX-License-Identifier: Apache-2.0
// HostStager: asynchronous copies between a GPU and host memory, in slices.
#ifndef FERRY_GPU_CUDA_HOST_STAGER_H_
#define FERRY_GPU_CUDA_HOST_STAGER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/cuda/cuda_event.h"
#include "gpu/cuda/device_executor.h"
#include "gpu/cuda/pinned_pool.h"
#include "tensor/copy.h"

namespace ferry::cuda {

struct HostStagerOptions {
  // Small enough that the first slice reaches the network soon, large enough for bus bandwidth.
  size_t slice_bytes = size_t{1} << 20;
  // Maximum number of slices in flight per copy.
  int slices_in_flight = 4;
};

// One copy, in either direction.
struct HostCopy {
  DevicePointer device = 0;
  void* host = nullptr;  // pinned or not: pinned memory is copied to and from directly
  size_t bytes = 0;
  // The device's bytes are complete (or may be overwritten) after this event; null: already.
  std::shared_ptr<const ReadyEvent> after;
  absl::Time deadline = absl::InfiniteFuture();  // by the executor's clock
  std::string what;                              // "step 3 key x", for messages
  // Keeps both memories alive; released when the device no longer uses either.
  std::shared_ptr<const void> keep;
  // For copies to the host only: bytes [offset, offset + bytes) are complete. Called in order, on
  // the executor's thread, before `done`. May be null.
  std::function<void(size_t offset, size_t bytes)> on_slice;
};

// For one device; everything runs on its executor's thread. Thread-safe. The executor must be
// destroyed before this.
class HostStager final {
 public:
  using DoneCallback = DeviceExecutor::DoneCallback;

  //   copier: copies between pinned and other memory, may be null; outlives the stager.
  //   Errors: as CudaStream::Create.
  static absl::StatusOr<std::unique_ptr<HostStager>> Create(DeviceExecutor& executor,
                                                            std::shared_ptr<EventPool> events,
                                                            std::shared_ptr<PinnedPool> pinned,
                                                            CopyPool* copier,
                                                            HostStagerOptions options = {});

  HostStager(const HostStager&) = delete;
  HostStager& operator=(const HostStager&) = delete;

  // `done` runs on the executor's thread, once, never inline: OK when every byte is complete;
  // RESOURCE_EXHAUSTED without pinned memory; DEADLINE_EXCEEDED; the device's error. After an error
  // bytes may still be written to the memory that `keep` keeps alive.
  //   Errors: INVALID_ARGUMENT for no bytes or no memory; as DeviceExecutor::Post. `done` is then
  //   not called.
  absl::Status CopyToHost(HostCopy copy, DoneCallback done);
  absl::Status CopyToDevice(HostCopy copy, DoneCallback done);
  // Ensures that the pool has pinned memory for one copy, for times when none can be allocated.
  //   Errors: as PinnedPool::Allocate.
  absl::Status Reserve();

 private:
  struct Shared;
  class Transfer;

  explicit HostStager(std::shared_ptr<Shared> shared);
  absl::Status Start(HostCopy copy, DoneCallback done, bool to_host);

  // Also held by copies in flight.
  const std::shared_ptr<Shared> shared_;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_HOST_STAGER_H_
