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

namespace strict_cuda {

// Never deleted, so that a handle that outlives its stream is recognised.
struct StreamHandle {
  struct Command {
    std::function<void()> work;
    bool is_delayed;
  };

  // Constant after construction.
  Context* context = nullptr;
  unsigned int flags = 0;
  bool is_legacy = false;

  std::atomic<bool> destroyed = false;
  std::atomic<bool> nccl_pending = false;  // a non-blocking launch has not reached the queue yet

  std::mutex mu;
  std::condition_variable changed;
  std::deque<Command> commands;  // guarded by mu
  uint64_t enqueued = 0;         // guarded by mu
  uint64_t completed = 0;        // guarded by mu
  bool has_thread = false;       // guarded by mu
};

// Null stream and per-thread streams included; those need a current context. Errors: INVALID_HANDLE
// for other pointers; a destroyed stream is a violation.
CUresult FindStream(CUstream handle, const char* call, StreamHandle** stream);

enum class Delay { kNone, kAsConfigured };

// Appends `work`, in the order that the rules of the legacy stream require. Returns its position,
// for WaitFor.
uint64_t Enqueue(StreamHandle& stream, std::function<void()> work,
                 Delay delay = Delay::kAsConfigured);
// Waits until the stream has passed `place`; without one, until all its current work is done.
void WaitFor(StreamHandle& stream, uint64_t place);
void WaitForAll(StreamHandle& stream);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_STREAM_H_
