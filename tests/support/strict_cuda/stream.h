// SPDX-License-Identifier: Apache-2.0
// Streams: a queue and a thread each, so that unawaited work has not happened yet.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_STREAM_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_STREAM_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "tests/support/strict_cuda/abi.h"
#include "tests/support/strict_cuda/context.h"
#include "tests/support/strict_cuda/hardware_queues.h"

namespace strict_cuda {

// Never deleted, so that a handle that outlives its stream is recognised.
struct StreamHandle {
  struct Command {
    std::function<void()> wait;  // until this returns, its hardware queue is held; may be empty
    std::function<void()> work;  // may be empty
    bool is_delayed = false;
    HardwareQueue* queue = nullptr;
    uint64_t turn = 0;
  };

  // Constant after construction.
  Context* context = nullptr;
  unsigned int flags = 0;
  bool is_legacy = false;
  StreamQueues queues;

  std::atomic<bool> destroyed = false;
  std::atomic<bool> nccl_pending = false;  // a non-blocking launch has not reached the queue yet

  std::mutex mu;
  std::condition_variable changed;
  std::deque<Command> commands;  // guarded by mu
  uint64_t enqueued = 0;         // guarded by mu
  uint64_t completed = 0;        // guarded by mu
  bool has_thread = false;       // guarded by mu
  bool is_copying = false;       // guarded by mu; the last submission was a copy
};

// Null stream and per-thread streams included; those need a current context. Errors: INVALID_HANDLE
// for other pointers; a destroyed stream is a violation.
CUresult FindStream(CUstream handle, const char* call, StreamHandle** stream);

// Decides the hardware queue of a command, and whether it lags by STRICT_CUDA_DELAY_US.
enum class Task {
  kKernel,        // also fills, and allocations in stream order
  kCopy,          // by a copy engine, which has queues of its own
  kMark,          // records of events: in the queue of the command before
  kWait,          // holds its queue until the function returns
  kHostFunction,  // the same, with a lag
};

// Appends `work`, in the order that the rules of the legacy stream require. Returns its position,
// for WaitFor.
uint64_t Enqueue(StreamHandle& stream, Task task, std::function<void()> work);
// The same with a wait before it, which holds the queue.
uint64_t Enqueue(StreamHandle& stream, Task task, std::function<void()> wait,
                 std::function<void()> work);
// Waits until the stream has passed `place`; without one, until all its current work is done.
void WaitFor(StreamHandle& stream, uint64_t place);
void WaitForAll(StreamHandle& stream);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_STREAM_H_
