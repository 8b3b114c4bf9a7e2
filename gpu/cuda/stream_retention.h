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

// Knowledge of the work that was on a stream.
enum class StreamEnd {
  kPassed,   // it has completed
  kLate,     // not at the deadline; kPassed or kUnknown may follow
  kUnknown,  // never to be known: no event can be recorded, the device has failed, or the executor
             // ends
};

// Releases the memory when the work that is on `stream` now has completed. A kernel may leave its
// stream after the call that stops it has returned: NCCL's abort does not promise more. `learn`
// (may be null) is called on the executor's thread, or in this call: with kLate at most once, and
// then at most once with one of the others: after those with none. If the work has not completed at
// `deadline`, by the executor's clock, that is logged, once, and the memory is kept until it has.
// Where that cannot be known it is never released, which is logged too.
void RetainUntilPassed(DeviceExecutor& executor, EventPool& events, Stream stream,
                       RetainedMemory retained, absl::Time deadline,
                       absl::AnyInvocable<void(StreamEnd)> learn);

// Releases the memory when nothing is on `stream`, which `stream_owner` keeps: for work behind
// which no event could be recorded, on a stream that no thread may wait for.
void RetainUntilIdle(DeviceExecutor& executor, Stream stream, std::string what,
                     std::shared_ptr<const void> memory,
                     std::shared_ptr<const void> stream_owner = nullptr);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_STREAM_RETENTION_H_
