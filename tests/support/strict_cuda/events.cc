// SPDX-License-Identifier: Apache-2.0
// Events of one process and of several.
#include "tests/support/strict_cuda/events.h"

#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "tests/support/strict_cuda/entry.h"
#include "tests/support/strict_cuda/stream.h"
#include "tests/support/strict_cuda/violation.h"

namespace strict_cuda {
namespace {

constexpr std::chrono::microseconds kPoll(100);

std::set<const EventHandle*>& Events() {
  static auto* const events = new std::set<const EventHandle*>;
  return *events;
}

CUresult FindEvent(CUevent handle, const char* call) {
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  if (Events().count(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
  if (!handle->destroyed) return CUDA_SUCCESS;
  Violation(Rule::kUseAfterDestroy, call, "event %p was destroyed", static_cast<void*>(handle));
  return CUDA_ERROR_INVALID_HANDLE;
}

// Ends when the awaited record has run. A process that dies takes its work with it, and its waiters
// wait for ever, unless the environment says that they are released.
void AwaitShared(SharedEvent& shared, uint64_t sequence) {
  static const bool hang = FromEnvironment("STRICT_CUDA_DEAD_EVENT", "hang") != "release";
  for (int polls = 1; shared.done < sequence; ++polls) {
    std::this_thread::sleep_for(kPoll);
    if (polls % 1024 == 0 && !hang && !IsAlive(shared.owner)) return;
  }
}

void RemoveWaiter(SharedEvent& shared, uint64_t sequence) {
  const MachineLock lock;
  for (Waiter& waiter : shared.waiters) {
    if (waiter.process == Self() && waiter.sequence == sequence) {
      waiter = Waiter{};
      return;
    }
  }
}

// Assigns the number of a new record, after a check for pending waits on an earlier one.
uint64_t NextRecord(SharedEvent& shared, const char* call) {
  const MachineLock lock;
  for (const Waiter& waiter : shared.waiters) {
    if (waiter.sequence == 0 || waiter.process == Self() || !IsAlive(waiter.process)) continue;
    Violation(Rule::kEventReuse, call, "process %d has not passed its wait for record %llu",
              waiter.process.pid, static_cast<unsigned long long>(waiter.sequence));  // NOLINT
    break;
  }
  return ++shared.recorded;
}

CUresult WaitShared(EventHandle& event, StreamHandle& stream, const char* call) {
  SharedEvent& shared = *event.shared;
  uint64_t sequence = 0;
  {
    const MachineLock lock;
    sequence = shared.recorded;
    if (event.is_imported && shared.gone) {
      Violation(Rule::kEventDestroyedWhileImported, call, "its exporter destroyed the event");
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event.is_imported && sequence == 0) {
      Violation(Rule::kEventWaitBeforeRecord, call, "the event of process %d has no record yet",
                shared.owner.pid);
    }
    if (shared.done >= sequence) return CUDA_SUCCESS;
    for (Waiter& waiter : shared.waiters) {
      if (waiter.sequence != 0 && IsAlive(waiter.process)) continue;
      waiter = Waiter{Self(), sequence};
      break;
    }
  }
  Enqueue(stream, Task::kWait, [&shared, sequence] {
    AwaitShared(shared, sequence);
    RemoveWaiter(shared, sequence);
  });
  return CUDA_SUCCESS;
}

bool IsDone(EventHandle& event) {
  if (event.shared != nullptr) return event.shared->done >= event.shared->recorded;
  const std::lock_guard<std::mutex> lock(event.mu);
  return event.marker == nullptr || event.marker->IsDone();
}

}  // namespace

void Marker::Set() {
  const std::lock_guard<std::mutex> lock(mu_);
  is_done_ = true;
  time_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Marker::IsDone() {
  const std::lock_guard<std::mutex> lock(mu_);
  return is_done_;
}

void Marker::Wait() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!is_done_) changed_.wait(lock);
}

std::chrono::steady_clock::time_point Marker::time() {
  const std::lock_guard<std::mutex> lock(mu_);
  return time_;
}

EventHandle* NewEvent(Context& context, unsigned int flags) {
  auto* const event = new EventHandle;
  event->context = &context;
  event->flags = flags;
  const std::lock_guard<std::mutex> lock(ProcessMutex());
  Events().insert(event);
  return event;
}

CUresult CheckEvent(CUevent handle, const char* call) { return FindEvent(handle, call); }

extern "C" {

STRICT_CUDA_EXPORT CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  STRICT_CUDA_ENTER();
  if (event == nullptr || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (const CUresult result = RequireContext(&context); result != 0) return result;
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0) {
    Violation(Rule::kEventInterprocessTiming, __func__, "flags are %u", flags);
    return CUDA_ERROR_INVALID_VALUE;
  }
  SharedEvent* shared = nullptr;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) {
    const MachineLock lock;
    shared = NewSharedEvent();
    if (shared == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    shared->device = context->physical;
  }
  *event = NewEvent(*context, flags);
  (*event)->shared = shared;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = FindEvent(event, __func__); result != 0) return result;
  if (event->shared != nullptr) {
    const MachineLock lock;
    if (event->is_imported) {
      event->shared->importers.Remove(Self());
    } else {
      const int32_t importer = event->shared->importers.OtherThan(ProcessId{});
      if (importer != 0) {
        Violation(Rule::kEventDestroyedWhileImported, __func__, "process %d has it open", importer);
      }
      event->shared->gone = true;
    }
  }
  event->destroyed = true;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuEventRecord(CUevent event, CUstream handle) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = FindEvent(event, __func__); result != 0) return result;
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  if (stream->context != event->context) return CUDA_ERROR_INVALID_HANDLE;
  if (event->shared != nullptr) {
    const uint64_t sequence = NextRecord(*event->shared, __func__);
    Enqueue(*stream, Task::kMark, [shared = event->shared, sequence] {
      uint64_t done = shared->done;
      while (done < sequence && !shared->done.compare_exchange_weak(done, sequence)) {
      }
    });
    return CUDA_SUCCESS;
  }
  auto marker = std::make_shared<Marker>();
  {
    const std::lock_guard<std::mutex> lock(event->mu);
    event->marker = marker;
  }
  Enqueue(*stream, Task::kMark, [marker] { marker->Set(); });
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuEventQuery(CUevent event) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = FindEvent(event, __func__); result != 0) return result;
  return IsDone(*event) ? event->context->error.load() : CUDA_ERROR_NOT_READY;
}

STRICT_CUDA_EXPORT CUresult cuEventSynchronize(CUevent event) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = FindEvent(event, __func__); result != 0) return result;
  if (event->shared != nullptr) {
    AwaitShared(*event->shared, event->shared->recorded);
    return event->context->error;
  }
  std::shared_ptr<Marker> marker;
  {
    const std::lock_guard<std::mutex> lock(event->mu);
    marker = event->marker;
  }
  if (marker != nullptr) marker->Wait();
  return event->context->error;
}

STRICT_CUDA_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  STRICT_CUDA_ENTER();
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (EventHandle* event : {start, end}) {
    if (const CUresult result = FindEvent(event, __func__); result != 0) return result;
    if ((event->flags & CU_EVENT_DISABLE_TIMING) != 0 || event->marker == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!event->marker->IsDone()) return CUDA_ERROR_NOT_READY;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->marker->time() - start->marker->time()).count();
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
  STRICT_CUDA_ENTER();
  (void)flags;  // only graphs use others than 0
  if (const CUresult result = FindEvent(event, __func__); result != 0) return result;
  StreamHandle* stream = nullptr;
  if (const CUresult result = FindStream(handle, __func__, &stream); result != 0) return result;
  if (event->shared != nullptr) return WaitShared(*event, *stream, __func__);
  std::shared_ptr<Marker> marker;
  {
    const std::lock_guard<std::mutex> lock(event->mu);
    marker = event->marker;
  }
  // One that was never recorded is no wait at all.
  if (marker == nullptr) return CUDA_SUCCESS;
  Enqueue(*stream, Task::kWait, [marker] { marker->Wait(); });
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace strict_cuda
