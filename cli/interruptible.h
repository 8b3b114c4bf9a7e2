// SPDX-License-Identifier: Apache-2.0
// Runs work that a signal or a job error cancels.
#ifndef FERRY_CLI_INTERRUPTIBLE_H_
#define FERRY_CLI_INTERRUPTIBLE_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "cli/signals.h"

namespace ferry::cli {

// The job's first error, from any thread. Thread-safe.
class JobError final {
 public:
  explicit JobError(BlockedSignals& signals) : signals_(signals) {}
  // Wakes `signals`.
  void Set(absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Get() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  BlockedSignals& signals_;
  mutable absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

// Runs `work` on a thread of its own ("ferry-work"). If a signal arrives or the job fails, or had
// failed before, calls `stop` once with the reason; it must make `work` end soon.
//   Errors: those of `work`; the reason for stopping instead of CANCELLED and ABORTED.
absl::Status RunInterruptibly(BlockedSignals& signals, const JobError& error,
                              const std::function<absl::Status()>& work,
                              const std::function<void(const absl::Status&)>& stop);

}  // namespace ferry::cli

#endif  // FERRY_CLI_INTERRUPTIBLE_H_
