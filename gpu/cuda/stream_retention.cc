// SPDX-License-Identifier: Apache-2.0
// An event behind the work that may use the memory.
#include "gpu/cuda/stream_retention.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "base/logging.h"
#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

void Log(const CudaDevice& device, const RetainedMemory& retained, const absl::Status& why) {
  FERRY_LOG_WARN(kGpu, "gpu:{}: {} bytes stay allocated, since {} may still use them: {}",
                 device.ordinal(), retained.bytes, retained.user, why);
}

// The memory is never released.
void KeepForEver(std::shared_ptr<const void> memory) {
  static auto* const kMu = new absl::Mutex;
  static auto* const kKept = new std::vector<std::shared_ptr<const void>>;
  absl::MutexLock lock(kMu);
  kKept->push_back(std::move(memory));
}

}  // namespace

void RetainUntilPassed(DeviceExecutor& executor, EventPool& events, Stream stream,
                       RetainedMemory retained, absl::Time deadline,
                       absl::AnyInvocable<void(StreamEnd)> learn) {
  const std::shared_ptr<CudaDevice> device = executor.device();
  const ScopedCurrent current(*device);
  std::shared_ptr<const void> memory = std::move(retained.memory);
  const absl::StatusOr<std::shared_ptr<const ReadyEvent>> event =
      ReadyEvent::Record(events, stream);
  struct Learner {
    absl::AnyInvocable<void(StreamEnd)> learn;
    std::atomic<bool> is_over{false};
  };
  auto learner = std::make_shared<Learner>();
  learner->learn = std::move(learn);
  const auto tell = [learner](StreamEnd end) {
    if (learner->is_over.load()) return;
    learner->is_over = end != StreamEnd::kLate;
    if (learner->learn) learner->learn(end);
  };
  absl::Status watched = event.status();
  if (watched.ok()) {
    // Not as `keep`, which the executor releases when the device has failed: what NCCL's network
    // threads may still write is not known then.
    watched = executor.Watch({.event = *event, .what = retained.user},
                             [device, retained, tell, memory](const absl::Status& status) mutable {
                               if (!status.ok()) {
                                 Log(*device, retained, status);
                                 KeepForEver(std::move(memory));
                                 return tell(StreamEnd::kUnknown);
                               }
                               memory = nullptr;
                               tell(StreamEnd::kPassed);
                             });
  }
  if (!watched.ok()) {
    Log(*device, retained, watched);
    KeepForEver(std::move(memory));
    return tell(StreamEnd::kUnknown);
  }
  // After the other: an executor that has room for one only tells at least when the work has
  // completed.
  watched = executor.Watch({.event = *event, .deadline = deadline, .what = retained.user},
                           [device, retained, tell, learner](const absl::Status& status) {
                             if (!absl::IsDeadlineExceeded(status) || learner->is_over) return;
                             Log(*device, retained, status);
                             tell(StreamEnd::kLate);
                           });
  if (!watched.ok()) Log(*device, retained, watched);
}

void RetainUntilIdle(DeviceExecutor& executor, Stream stream, std::string what,
                     std::shared_ptr<const void> memory, std::shared_ptr<const void> stream_owner) {
  DeviceExecutor::Watched watched;
  watched.is_done = [device = executor.device(), stream,
                     owner = std::move(stream_owner)]() -> absl::StatusOr<bool> {
    const Result result = device->table().stream_query(stream);
    if (result == kErrorNotReady) return false;
    FERRY_RETURN_IF_ERROR(device->Check(result, "cuStreamQuery"));
    return true;
  };
  watched.what = std::move(what);
  watched.keep = std::move(memory);
  // An executor that is full keeps it too.
  executor.Watch(std::move(watched), [](absl::Status) {}).IgnoreError();
}

}  // namespace ferry::cuda
