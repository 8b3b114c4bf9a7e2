// SPDX-License-Identifier: Apache-2.0
// RendezvousManager: the rendezvous of all steps of a worker.
#ifndef FERRY_RENDEZVOUS_RENDEZVOUS_MANAGER_H_
#define FERRY_RENDEZVOUS_RENDEZVOUS_MANAGER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "base/clock.h"
#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/remote_rendezvous.h"

namespace ferry {

struct RendezvousManagerOptions {
  RendezvousLimits limits;
  // Maximum number of open steps.
  size_t max_steps = 100'000;
  // Number of finished steps remembered, so that late calls for one fail at once instead of waiting
  // forever in a step that is not run. Step ids are random, so they have no order.
  size_t max_finished_steps = 100'000;
};

// Thread-safe. Lives as long as the worker. Expire must be called periodically.
class RendezvousManager final {
 public:
  // `clock` and `fetcher` must outlive it. `wake` wakes callers that wait for a step's operations;
  // null: they poll.
  RendezvousManager(const Clock& clock, RemoteFetcher& fetcher,
                    RendezvousManagerOptions options = {}, OutstandingOperations::Wake wake = {});
  // Calls CleanupAll.
  ~RendezvousManager();

  RendezvousManager(const RendezvousManager&) = delete;
  RendezvousManager& operator=(const RendezvousManager&) = delete;

  // Returns the step's rendezvous, created on the first call: a peer's request may arrive before
  // the step starts here.
  //   Errors: ABORTED the step is over; RESOURCE_EXHAUSTED too many are open.
  absl::StatusOr<std::shared_ptr<RemoteRendezvous>> Find(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_);

  // The step, if it is open; else null.
  std::shared_ptr<RemoteRendezvous> FindOpen(int64_t step_id) const ABSL_LOCKS_EXCLUDED(mu_);
  // All open steps.
  std::vector<std::shared_ptr<RemoteRendezvous>> Steps() const ABSL_LOCKS_EXCLUDED(mu_);

  // RemoteRendezvous::RecvLocalAsync of the step, for a consumer anywhere.
  //   Errors: also as Find.
  void RecvLocalAsync(int64_t step_id, const RendezvousKey& key, RecvArgs args, RecvCallback done);
  // The same, but blocks for at most `timeout` of real time.
  absl::StatusOr<Received> RecvLocal(int64_t step_id, const RendezvousKey& key,
                                     absl::Duration timeout, RecvArgs args = {});

  // Removes the step if the program has not opened it and nothing waits in it. It may begin again.
  void ForgetIfUnused(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the step: waiting and later calls fail with ABORTED.
  void Cleanup(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all steps.
  void CleanupAll() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends everything that needs `task`, in every step, with `why` and the key. Returns the number
  // ended.
  size_t FailTask(const TaskName& task, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // RemoteRendezvous::RecordSendFailure of the step, unless it is over.
  void RecordSendFailure(int64_t step_id, const RendezvousKey& key, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Begins an operation of the step; none if it is over.
  StepOperation BeginOperation(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_);

  void Expire() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Time NextDeadline() const ABSL_LOCKS_EXCLUDED(mu_);

  // Visits items that have waited for at least `min_age`, step by step.
  void ForEachPending(absl::Duration min_age,
                      absl::FunctionRef<void(const PendingStepOp&)> visit) const
      ABSL_LOCKS_EXCLUDED(mu_);
  size_t step_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table, summed over the open steps; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using StepPtr = std::shared_ptr<RemoteRendezvous>;

  void RememberFinishedLocked(int64_t step_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const Clock& clock_;
  RemoteFetcher& fetcher_;
  const RendezvousManagerOptions options_;
  const OutstandingOperations::Wake wake_;

  // Never held while a step is used.
  mutable SpinLock mu_;
  absl::flat_hash_map<int64_t, StepPtr> steps_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<int64_t> finished_ ABSL_GUARDED_BY(mu_);
  std::deque<int64_t> finished_order_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RENDEZVOUS_MANAGER_H_
