// SPDX-License-Identifier: Apache-2.0
// Waits for a signal, an error or completion, whichever comes first.
#include "cli/interruptible.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/thread.h"

namespace ferry::cli {

void JobError::Set(absl::Status error) {
  {
    absl::MutexLock lock(&mu_);
    if (error_.ok()) error_ = std::move(error);
  }
  signals_.Wake();
}

absl::Status JobError::Get() const {
  absl::MutexLock lock(&mu_);
  return error_;
}

absl::Status RunInterruptibly(BlockedSignals& signals, const JobError& error,
                              const std::function<absl::Status()>& work,
                              const std::function<void(const absl::Status&)>& stop) {
  std::atomic<bool> is_over = false;
  absl::Status result;
  absl::Status reason;
  {
    Thread worker("ferry-work", [&] {
      result = work();
      is_over = true;
      signals.Wake();
    });
    while (!is_over) {
      // Checked before each wait: the error's wake-up may have been consumed by another wait.
      if (reason.ok()) {
        reason = error.Get();
        if (!reason.ok()) stop(reason);
      }
      const std::optional<int> signal = signals.WaitFor(absl::InfiniteDuration());
      if (!signal || !reason.ok() || is_over) continue;
      reason = absl::CancelledError(absl::StrCat("stopped by ", SignalName(*signal)));
      stop(reason);
    }
  }
  // After a stop, CANCELLED and ABORTED count as its consequence; completed work keeps its result.
  const bool is_stopped = !reason.ok() && (absl::IsCancelled(result) || absl::IsAborted(result));
  return is_stopped ? reason : result;
}

}  // namespace ferry::cli
