// SPDX-License-Identifier: Apache-2.0
// RetainUntilPassed: memory that work on a stream may use although its end was forced.
#ifndef FERRY_GPU_CUDA_STREAM_RETENTION_H_
#define FERRY_GPU_CUDA_STREAM_RETENTION_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

#include "gpu/cuda/cuda_event.h"
#include "gpu/cuda/device_executor.h"

namespace ferry::cuda {

struct RetainedMemory {
  // For the message: "operations of an aborted NCCL communicator".
  std::string user;
  size_t bytes = 0;
  std::shared_ptr<const void> memory;
};

// Releases the memory when the work that is on `stream` now has completed, and then calls `passed`
// (may be null) on the executor's thread. A kernel may leave its stream after the call that stops
// it has returned: NCCL's abort does not promise more.
// If the work has not completed at `deadline`, by the executor's clock, that is logged, once, and
// the memory is kept until it has. Where that cannot be known any more (no event can be recorded,
// or the executor ends), it is never released, which is logged too, and `passed` is called.
void RetainUntilPassed(DeviceExecutor& executor, EventPool& events, Stream stream,
                       RetainedMemory retained, absl::Time deadline,
                       absl::AnyInvocable<void() &&> passed);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_STREAM_RETENTION_H_
