// SPDX-License-Identifier: Apache-2.0
// The threads of streams, and the driver's functions for them.
#include "tests/support/strict_cuda/stream.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

std::atomic<int>& DelayUs() {
  static std::atomic<int>* const delay =
      new std::atomic<int>(static_cast<int>(NumberFromEnvironment("STRICT_CUDA_DELAY_US", 100)));
  return *delay;
}

std::atomic<int> outstanding = 0;

void Run(StreamHandle& stream) {
  pthread_setname_np(pthread_self(), "strict-stream");
  std::unique_lock<std::mutex> lock(stream.mu);
  while (true) {
    while (stream.commands.empty()) {
      if (stream.destroyed) return;
      stream.changed.wait(lock);
    }
    const StreamHandle::Command command = std::move(stream.commands.front());
    stream.commands.pop_front();
    lock.unlock();
    if (command.queue != nullptr) command.queue->AwaitTurn(command.turn);
    if (command.wait != nullptr) command.wait();
    if (command.queue != nullptr) command.queue->Begun();
    if (command.is_delayed && DelayUs() > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(DelayUs()));
    }
    if (command.work != nullptr) command.work();
    --outstanding;
    lock.lock();
    ++stream.completed;
    stream.changed.notify_all();
  }
}

StreamHandle* NewStream(Context& context, unsigned int flags, bool is_legacy, int priority = 0) {
  auto* const stream = new StreamHandle;
  stream->context = &context;
  stream->flags = flags;
  stream->is_legacy = is_legacy;
  const std::lock_guard<std::mutex> lock(context.mu);
  stream->queues = context.queues.Next(priority);
  context.streams.push_back(stream);
  if (is_legacy) context.legacy = stream;
  return stream;
}

uint64_t Push(StreamHandle& stream, Task task, std::function<void()> wait,
              std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(stream.mu);
  if (task != Task::kMark) stream.is_copying = task == Task::kCopy;
  StreamHandle::Command command;
  command.wait = std::move(wait);
  command.work = std::move(work);
  command.is_delayed = task != Task::kMark && task != Task::kWait;
  command.queue = stream.is_copying ? stream.queues.copies : stream.queues.kernels;
  // Under the stream's lock: the order of turns is that of the stream.
  if (command.queue != nullptr) command.turn = command.queue->Submit();
  if (!std::exchange(stream.has_thread, true)) std::thread(Run, std::ref(stream)).detach();
  stream.commands.push_back(std::move(command));
  ++outstanding;
  stream.changed.notify_all();
  return ++stream.enqueued;
}

uint64_t EnqueuedIn(StreamHandle& stream) {
  const std::lock_guard<std::mutex> lock(stream.mu);
  return stream.enqueued;
}

bool IsBlocking(const StreamHandle& stream) { return (stream.flags & CU_STREAM_NON_BLOCKING) == 0; }

StreamHandle* LegacyOf(Context& context) {
  {
    const std::lock_guard<std::mutex> lock(context.mu);
    if (context.legacy != nullptr) return context.legacy;
  }
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  return context.legacy != nullptr ? context.legacy : NewStream(context, 0, true);
}

StreamHandle* PerThreadOf(Context& context) {
  static thread_local std::map<Context*, StreamHandle*> streams;
  StreamHandle*& stream = streams[&context];
  if (stream == nullptr) stream = NewStream(context, CU_STREAM_DEFAULT, false);
  return stream;
}

// Over all contexts: a handle does not tell its own.
bool IsStream(const StreamHandle* handle) {
  for (const int physical : GetConfig().visible) {
    Context* const context = ActiveContextOf(physical);
    if (context == nullptr) continue;
    const std::lock_guard<std::mutex> lock(context->mu);
    for (const StreamHandle* stream : context->streams) {
      if (stream == handle) return true;
    }
  }
  return false;
}

constexpr int kGreatestPriority = -5;

CUresult CreateStream(CUstream* stream, unsigned int flags, int priority) {
  if (stream == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  *stream = NewStream(*context, flags, false, std::clamp(priority, kGreatestPriority, 0));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult FindStream(CUstream handle, const char* call, StreamHandle** stream) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 2) {
    Context* context = nullptr;
    if (const CUresult result = RequireContext(&context); result != 0) return result;
    *stream = number == 2 ? PerThreadOf(*context) : LegacyOf(*context);
    return CUDA_SUCCESS;
  }
  if (!IsStream(handle)) return CUDA_ERROR_INVALID_HANDLE;
  if (handle->destroyed) {
    Violation(Rule::kUseAfterDestroy, call, "stream %p was destroyed", static_cast<void*>(handle));
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (handle->nccl_pending) {
    Violation(Rule::kNcclNotReady, call,
              "stream %p waits for an NCCL launch that is in progress: what is enqueued now runs "
              "before it",
              static_cast<void*>(handle));
  }
  *stream = handle;
  return handle->context->error;
}

uint64_t Enqueue(StreamHandle& stream, Task task, std::function<void()> work) {
  const bool holds = task == Task::kWait || task == Task::kHostFunction;
  return holds ? Enqueue(stream, task, std::move(work), nullptr)
               : Enqueue(stream, task, nullptr, std::move(work));
}

uint64_t Enqueue(StreamHandle& stream, Task task, std::function<void()> wait,
                 std::function<void()> work) {
  Context& context = *stream.context;
  if (TakeIllegalAccess()) {
    work = [&context] { FailContext(context, CUDA_ERROR_ILLEGAL_ADDRESS); };
  }
  const std::lock_guard<std::mutex> lock(context.mu);
  std::vector<std::pair<StreamHandle*, uint64_t>> before;
  if (stream.is_legacy) {
    for (StreamHandle* other : context.streams) {
      if (other != &stream && IsBlocking(*other)) before.emplace_back(other, EnqueuedIn(*other));
    }
  } else if (IsBlocking(stream) && context.legacy != nullptr) {
    before.emplace_back(context.legacy, EnqueuedIn(*context.legacy));
  }
  if (before.empty()) return Push(stream, task, std::move(wait), std::move(work));
  return Push(
      stream, task,
      [before = std::move(before), wait = std::move(wait)] {
        for (const auto& [other, place] : before) WaitFor(*other, place);
        if (wait != nullptr) wait();
      },
      std::move(work));
}

void WaitFor(StreamHandle& stream, uint64_t place) {
  std::unique_lock<std::mutex> lock(stream.mu);
  while (stream.completed < place) stream.changed.wait(lock);
}

void WaitForAll(StreamHandle& stream) { WaitFor(stream, EnqueuedIn(stream)); }

void SynchronizeContext(Context& context) {
  std::vector<StreamHandle*> streams;
  {
    const std::lock_guard<std::mutex> lock(context.mu);
    streams = context.streams;
  }
  for (StreamHandle* stream : streams) WaitForAll(*stream);
}

extern "C" {

STRICT_CUDA_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  STRICT_CUDA_ENTER();
  return CreateStream(stream, flags, 0);
}

STRICT_CUDA_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags,
                                                       int priority) {
  STRICT_CUDA_ENTER();
  return CreateStream(stream, flags, priority);
}

STRICT_CUDA_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  STRICT_CUDA_ENTER();
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return CUDA_ERROR_INVALID_HANDLE;
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  const std::lock_guard<std::mutex> lock(stream->mu);
  stream->destroyed = true;
  stream->changed.notify_all();
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  STRICT_CUDA_ENTER();
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  // The legacy stream waits for the blocking ones, also for their own waits.
  if (stream->is_legacy) Enqueue(*stream, Task::kMark, [] {});
  WaitForAll(*stream);
  return stream->context->error;
}

STRICT_CUDA_EXPORT CUresult cuStreamQuery(CUstream handle) {
  STRICT_CUDA_ENTER();
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  const std::lock_guard<std::mutex> lock(stream->mu);
  return stream->completed == stream->enqueued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

STRICT_CUDA_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  STRICT_CUDA_ENTER();
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  *context = stream->context;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* user_data) {
  STRICT_CUDA_ENTER();
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  Context* const context = stream->context;
  Enqueue(*stream, Task::kHostFunction, [function, user_data, context] {
    // Like the driver: not in a context that has failed.
    if (context->error != CUDA_SUCCESS) return;
    SetInHostFunction(true);
    function(user_data);
    SetInHostFunction(false);
  });
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT void strict_cuda_set_delay_us(int delay_us) { DelayUs() = delay_us; }

STRICT_CUDA_EXPORT int strict_cuda_outstanding() { return outstanding; }

}  // extern "C"

}  // namespace strict_cuda
