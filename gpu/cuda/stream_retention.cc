// SPDX-License-Identifier: Apache-2.0
// An event behind the work that may use the memory.
#include "gpu/cuda/stream_retention.h"

#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "base/logging.h"

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
                       absl::AnyInvocable<void() &&> passed) {
  const std::shared_ptr<CudaDevice> device = executor.device();
  const ScopedCurrent current(*device);
  std::shared_ptr<const void> memory = std::move(retained.memory);
  const absl::StatusOr<std::shared_ptr<const ReadyEvent>> event =
      ReadyEvent::Record(events, stream);
  absl::Status watched = event.status();
  auto shared = std::make_shared<absl::AnyInvocable<void() &&>>(std::move(passed));
  const auto pass = [shared] {
    if (*shared) std::move (*shared)();
  };
  if (watched.ok()) {
    // For the message alone.
    watched =
        executor.Watch({.event = *event, .deadline = deadline, .what = retained.user},
                       [device, retained](const absl::Status& status) {
                         // Otherwise it has completed, or the device has failed and runs nothing
                         // any more.
                         if (absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) {
                           Log(*device, retained, status);
                         }
                       });
  }
  if (watched.ok()) {
    // If the executor ends before the event has completed, it never releases `keep`.
    watched = executor.Watch({.event = *event, .what = retained.user, .keep = memory},
                             [pass](const absl::Status&) { pass(); });
  }
  if (watched.ok()) return;
  Log(*device, retained, watched);
  KeepForEver(std::move(memory));
  pass();
}

}  // namespace ferry::cuda
