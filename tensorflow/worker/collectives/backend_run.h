// SPDX-License-Identifier: Apache-2.0
// BackendRun: one member's part of a collective in progress.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_BACKEND_RUN_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_BACKEND_RUN_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "base/cancellation_token.h"
#include "rendezvous/key.h"
#include "tensorflow/worker/collectives/collective_backend.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

// Common to all backends: counts pending operations, and calls `done` once when none are left, with
// the first error, or a root cause that arrives later. Kept alive by its pending operations.
// Thread-safe.
class BackendRun : public std::enable_shared_from_this<BackendRun> {
 public:
  virtual ~BackendRun() = default;

  // Call once, after construction.
  void Start();

 protected:
  BackendRun(std::shared_ptr<StepTransfers> transfers, CollectiveWork work, RecvCallback done);

  // Starts all operations; not called if the run was cancelled before.
  virtual absl::Status Issue() = 0;
  // Called on the first failure, after receives were cancelled.
  virtual void OnFailed(const absl::Status& why) {}
  // Called when nothing is pending, before `done`.
  virtual void OnEnd() {}

  // Each BeginOne must be matched by exactly one EndOne.
  void BeginOne() { under_way_.fetch_add(1, std::memory_order_relaxed); }
  void EndOne();
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // result_ is complete: cancels pending receives and ignores further failures.
  void Finish();
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  // Returns OK, or the error.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<RendezvousKey> KeyOf(int from, int to, absl::string_view what) const;
  const std::string& NameOf(int rank) const;
  // Returns "instance 3 of group 1".
  std::string Instance() const;
  // Explains the failure of a receive from that member. A timeout may be this member's own, or one
  // reported by another member, which then carries its reason.
  //   about: text for this member's own timeout.
  absl::Status Explain(absl::Status status, absl::string_view about) const;

  const std::shared_ptr<StepTransfers> transfers_;
  const CollectiveWork work_;
  // Cancels receives.
  CancellationToken cancellation_;
  // This member's result.
  Received result_;

 private:
  RecvCallback done_;
  CancellationToken::CallbackId token_ = CancellationToken::kNoCallback;
  // Start holds the first count.
  std::atomic<int> under_way_{1};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> is_finished_{false};
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_BACKEND_RUN_H_
