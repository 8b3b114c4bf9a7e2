// SPDX-License-Identifier: Apache-2.0
// PartialRun: a run that is fed and fetched in pieces.
#ifndef FERRY_TENSORFLOW_WORKER_PARTIAL_RUN_H_
#define FERRY_TENSORFLOW_WORKER_PARTIAL_RUN_H_

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace ferry::worker {

// Thread-safe. Completes the last call when both it and the run have ended, whichever is later.
// Source: tensorflow/core/distributed_runtime/partial_run_mgr.cc.
class PartialRun final {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // Called when the run has ended.
  void EndRun(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  // Called when the last call has its fetches, or failed. Calls `done` once with the run's status,
  // or with `status` if that is OK, on the thread that ends the later of the two, possibly before
  // returning.
  void EndLastCall(absl::Status status, Done done) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::optional<absl::Status> run_ ABSL_GUARDED_BY(mu_);
  absl::Status last_call_ ABSL_GUARDED_BY(mu_);
  // Set while the last call waits for the run.
  Done done_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_PARTIAL_RUN_H_
