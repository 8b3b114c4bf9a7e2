// SPDX-License-Identifier: Apache-2.0
// JoinFailures: processes that cannot become tasks, and the start of the job that fails with them.
#ifndef FERRY_COORD_CORE_JOIN_FAILURES_H_
#define FERRY_COORD_CORE_JOIN_FAILURES_H_

#include <cstddef>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/membership.h"
#include "coord/core/options.h"
#include "coord/core/register_barrier.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Not thread-safe: part of a Coordinator, whose methods FailJoining, RefuseJoining and WatchJoining
// document the calls. A reported failure waits for a task that registers, since only such a task
// can tell its user; when one does, all tasks that register fail with it, until the next job.
class JoinFailures final {
 public:
  JoinFailures(const CoordinatorOptions& options, const Clock& clock, const Membership& membership,
               RegisterBarrier& register_barrier, Completions& completions, WaitIds& ids)
      : options_(options),
        clock_(clock),
        membership_(membership),
        register_barrier_(register_barrier),
        completions_(completions),
        ids_(ids) {}

  WaitId Report(const absl::Status& why, absl::Duration timeout, StatusCallback done);
  void Refuse(const absl::Status& why);
  WaitId Watch(TaskId caller, StatusCallback done);
  // Ends a Report or Watch with `why`. Returns false when the wait is over.
  bool Cancel(WaitId wait, const absl::Status& why);

  // A task waits at the register barrier now: fails it if there is a reason. Returns true if so.
  bool FailWaitingTasks();
  // Answers the watches if a task that registers now would fail at once.
  void AnswerWatches();

  // The error with which the start of the current job has failed, else OK.
  const absl::Status& error() const { return error_; }
  // Returns error() for a `task` that registers after the others have failed with it.
  absl::Status TellLate(TaskId task);
  // The number of processes that were told of the failure.
  size_t told_count() const { return notified_tasks_.size() + notified_others_; }

  // The time without activity of the tasks in error after which a failed job is over; see
  // CoordinatorOptions::reuse.
  absl::Duration EndOfFailedJob() const;
  // True if no task is connected, and none in error is expected to call again.
  bool IsJobOver() const;

  void BeginNewJob();
  // Answers all reports with `status`, without a failure.
  void EndReports(const absl::Status& status);
  // Ends all calls with `why`.
  void Stop(const absl::Status& why);

  void Expire(absl::Time now);
  absl::Time NextDeadline() const;
  size_t wait_count() const { return reports_.size() + watches_.size(); }
  void ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const;
  // Adds tables named "joining.failures", "joining.told" and "joining.watches".
  void AddTableSizes(TableSizes& sizes) const;

 private:
  struct Reported {
    absl::Status why;
    absl::Time since;
    absl::Time deadline;
    StatusCallback done;
  };
  struct Watching {
    TaskId caller = kNoTask;
    absl::Time since;
    StatusCallback done;
  };

  // Fails the tasks at the register barrier and the watches with refusal_, or else with the first
  // report, and answers all reports.
  //   REQUIRES: there are such tasks, and a reason.
  void Fail();
  // The error with which a task that registers now would fail at once; else OK.
  absl::Status Present() const;
  // error_, for a task that registers late.
  absl::Status LateError() const;
  void TellWatches(const absl::Status& error);

  // Constant after construction.
  const CoordinatorOptions& options_;
  const Clock& clock_;
  const Membership& membership_;
  RegisterBarrier& register_barrier_;
  Completions& completions_;
  WaitIds& ids_;

  absl::btree_map<WaitId, Reported> reports_;
  absl::btree_map<WaitId, Watching> watches_;
  // Not OK: no job starts any more.
  absl::Status refusal_;
  // See error().
  absl::Status error_;
  // See told_count().
  absl::btree_set<TaskId> notified_tasks_;
  size_t notified_others_ = 0;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_JOIN_FAILURES_H_
