// SPDX-License-Identifier: Apache-2.0
// Work that a signal or an error of the job calls off.
#ifndef FERRY_CLI_STOPPABLE_H_
#define FERRY_CLI_STOPPABLE_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "cli/signals.h"

namespace ferry::cli {

// The first error of the job, from whichever thread. Thread-safe.
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

// Runs `work` on a thread of its own ("ferry-work"). When a signal comes or the job fails, or has
// failed before, `stop` is called once with the reason, and has to make `work` end soon.
//   Errors: those of `work`; the reason why it was stopped in the place of CANCELLED and ABORTED.
absl::Status RunStoppably(BlockedSignals& signals, const JobError& error,
                          const std::function<absl::Status()>& work,
                          const std::function<void(const absl::Status&)>& stop);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STOPPABLE_H_
