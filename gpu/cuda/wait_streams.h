// SPDX-License-Identifier: Apache-2.0
// WaitStreams: streams for what waits, so that nothing else stands behind it.
#ifndef FERRY_GPU_CUDA_WAIT_STREAMS_H_
#define FERRY_GPU_CUDA_WAIT_STREAMS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "gpu/cuda/cuda_device.h"

namespace ferry::cuda {

// Work behind an event that is not done yet goes to a stream with nothing before it: what a kernel
// of the user's holds up holds up nobody else. A few are enough, since the hardware has few queues;
// when all of them wait, the host waits instead, by asking the event. For one thread: the
// device's executor.
class WaitStreams final {
 public:
  //   Errors: as CudaStream::Create.
  static absl::StatusOr<std::unique_ptr<WaitStreams>> Create(std::shared_ptr<CudaDevice> device,
                                                             int count = 8);

  // One with nothing before it; null: all of them wait. What the caller enqueues at once is alone
  // on it.
  Stream TakeIdle() const;
  // The same, or one that others wait on, by turns, for work that cannot be put off.
  Stream TakeIdleOrAny();

 private:
  explicit WaitStreams(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  const std::shared_ptr<CudaDevice> device_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
  size_t next_ = 0;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_WAIT_STREAMS_H_
