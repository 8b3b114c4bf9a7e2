// SPDX-License-Identifier: Apache-2.0
// RegisterBarrier: the tasks that have registered and wait until all others have.
#ifndef FERRY_COORD_CORE_REGISTER_BARRIER_H_
#define FERRY_COORD_CORE_REGISTER_BARRIER_H_

#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "coord/core/barriers.h"
#include "coord/core/completions.h"
#include "coord/core/jobs.h"
#include "coord/core/options.h"
#include "coord/core/types.h"

namespace ferry::coord {

struct Registration {
  TaskId task = kNoTask;
  Incarnation incarnation;
  // May die and come back without failing the job.
  bool recoverable = false;
  // Waits for all tasks even if the job has no register barrier.
  bool waits_for_all = false;
  // Stops waiting after this, without failing the others.
  absl::Duration own_timeout = absl::InfiniteDuration();
  // The number of heartbeats that the client sends per heartbeat timeout, from which the
  // coordinator learns that timeout. 0: the client uses the coordinator's timeout.
  int beats_per_timeout = 0;
  TaskFacts facts;
};

// Not thread-safe: part of a Coordinator. Keeps each waiting task's registration beside its arrival
// at the barrier, because a task becomes a member of the job only when the barrier passes. One that
// stops waiting is withdrawn, and the others keep waiting for it.
class RegisterBarrier final {
 public:
  RegisterBarrier(const CoordinatorOptions& options, const Jobs& jobs, Barriers& barriers)
      : options_(options), jobs_(jobs), barriers_(barriers) {}

  static absl::string_view Id();
  // True if all tasks of the job have registered.
  bool HasPassed() const { return barriers_.HasPassed(Id()); }
  // True if no task waits.
  bool empty() const { return waiting_.empty(); }
  std::vector<TaskId> Tasks() const;
  // Returns the registration of a waiting task, else null.
  const Registration* Find(TaskId task) const;

  // `done`: called when the barrier is over, or the task stops waiting. Supersedes an earlier
  // registration of the task.
  WaitId Wait(Registration registration, absl::Time now, StatusCallback done);
  // Arrives for a task that does not wait itself, since others may.
  void ArriveWithoutWaiting(TaskId task, absl::Time now);
  // Ends the pending registration of `task`, if any, because a newer one takes its place.
  void Supersede(TaskId task);

  // Withdraws `task` with `why`, whether it waits or has arrived without waiting.
  void Withdraw(TaskId task, const absl::Status& why);
  // Withdraws `task` if this incarnation of it waits. Returns false if it does not.
  bool Leave(TaskId task, Incarnation incarnation);
  // Removes the registration whose arrival is `wait`, which the caller then withdraws. Returns
  // false if there is none.
  bool Remove(WaitId wait);
  // Fails the waiting tasks. If the job has a register barrier, that fails too, and with it the
  // start of the job; otherwise tasks that do not wait may be running already.
  void Fail(const absl::Status& error);
  // Withdraws the tasks whose own timeout has passed.
  void Expire(absl::Time now);
  absl::Time NextDeadline() const;

  // True if tasks waited for the barrier and it is over. The caller then takes their registrations.
  bool IsOver() const { return !waiting_.empty() && barriers_.IsOver(Id()); }
  // Removes all registrations, in the order of the tasks. Their waits are the caller's concern.
  std::vector<Registration> Take();

  // Adds tables named "joining" and "joining.deadlines".
  void AddTableSizes(TableSizes& sizes) const;

 private:
  struct Waiting {
    Registration registration;
    WaitId wait;
    absl::Time since;
    absl::Time deadline;
  };

  BarrierArrival Arrival(TaskId task) const;
  void Remove(TaskId task);

  // Constant after construction.
  const CoordinatorOptions& options_;
  const Jobs& jobs_;
  Barriers& barriers_;

  absl::btree_map<TaskId, Waiting> waiting_;
  // The finite deadlines of the waiting tasks.
  absl::btree_set<std::pair<absl::Time, TaskId>> deadlines_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_REGISTER_BARRIER_H_
