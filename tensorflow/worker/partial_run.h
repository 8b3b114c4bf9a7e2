// SPDX-License-Identifier: Apache-2.0
// PartialRun: a run that is fed and fetched in pieces, until its last call.
#ifndef FERRY_TENSORFLOW_WORKER_PARTIAL_RUN_H_
#define FERRY_TENSORFLOW_WORKER_PARTIAL_RUN_H_

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace ferry::worker {

// Thread-safe. Brings the end of the run and the end of its last call together: whichever comes
// last completes the call. Source: tensorflow/core/distributed_runtime/partial_run_mgr.cc.
class PartialRun final {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // The run has ended.
  void EndRun(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  // The last call has what it wants, or not. `done` gets the run's status, or `status` if that is
  // OK; once, on the thread that ends the other of the two, perhaps inside.
  void EndLastCall(absl::Status status, Done done) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::optional<absl::Status> run_ ABSL_GUARDED_BY(mu_);
  absl::Status last_call_ ABSL_GUARDED_BY(mu_);
  // Set while the last call waits.
  Done done_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_PARTIAL_RUN_H_
