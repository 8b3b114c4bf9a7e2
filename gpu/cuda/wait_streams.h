// SPDX-License-Identifier: Apache-2.0
// WaitStreams: separate streams for work that waits, so that other work does not queue behind it.
#ifndef FERRY_GPU_CUDA_WAIT_STREAMS_H_
#define FERRY_GPU_CUDA_WAIT_STREAMS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "gpu/cuda/cuda_device.h"

namespace ferry::cuda {

// Work behind an event that is not complete yet goes to an otherwise empty stream, so that a slow
// kernel of the user's delays no other transfer. A few are enough, since the hardware has few
// queues; when all of them wait, the host waits instead, by polling the event. Used on one thread:
// the device's executor.
class WaitStreams final {
 public:
  //   Errors: as CudaStream::Create.
  static absl::StatusOr<std::unique_ptr<WaitStreams>> Create(std::shared_ptr<CudaDevice> device,
                                                             int count = 8);

  // Returns an empty stream; null: all of them are busy. Only work that the caller enqueues at once
  // is alone on it.
  Stream TakeIdle() const;
  // The same, or a busy one, round robin, for work that cannot be deferred.
  Stream TakeIdleOrAny();

 private:
  explicit WaitStreams(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  const std::shared_ptr<CudaDevice> device_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
  size_t next_ = 0;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_WAIT_STREAMS_H_
