// SPDX-License-Identifier: Apache-2.0
// JobFailure: puts tasks into the error state, and propagates a job's first error to all of them.
#ifndef FERRY_COORD_CORE_JOB_FAILURE_H_
#define FERRY_COORD_CORE_JOB_FAILURE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/barriers.h"
#include "coord/core/completions.h"
#include "coord/core/membership.h"
#include "coord/core/options.h"
#include "coord/core/register_barrier.h"
#include "coord/core/topology_exchange.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Notifies a task's own error service (TaskFacts::error_address) that the job has failed.
using ErrorReport = std::function<void(const std::string& address, const absl::Status& error)>;

// Not thread-safe: part of a Coordinator. Clients learn of the job's error by the polls that they
// keep pending; if none has polled, their tasks are put into the error state too, so that their
// heartbeats fail. The failure of a recoverable task is its own and does not fail the job.
class JobFailure final {
 public:
  // The parts that the failure of a task affects.
  struct Parts {
    Membership& membership;
    Barriers& barriers;
    RegisterBarrier& register_barrier;
    TopologyExchange& topology;
  };

  JobFailure(const CoordinatorOptions& options, const Clock& clock, const JobIdentity& job,
             Parts parts, Completions& completions, WaitIds& ids)
      : options_(options),
        clock_(clock),
        job_(job),
        membership_(parts.membership),
        barriers_(parts.barriers),
        register_barrier_(parts.register_barrier),
        topology_(parts.topology),
        completions_(completions),
        ids_(ids) {}

  // The first error that was propagated; sticky until a new job starts.
  const absl::Status& error() const { return error_; }
  // True if the task may die and come back without failing the job.
  bool IsRecoverable(TaskId task) const;

  // Puts `task` into the error state and fails its barriers, without propagating the error.
  void FailTask(TaskId task, absl::Status error);
  // FailTask for each task that is not in error yet.
  void FailAllTasks(const absl::Status& error);
  // `task` cannot be at barriers any more: those that need it fail, or wait for its return.
  void LeaveBarriers(TaskId task, const absl::Status& why);
  // Propagates an error of `sources` to the other tasks. The job fails with its first such error,
  // unless all sources are recoverable.
  void Propagate(const absl::Status& error, absl::Span<const TaskId> sources);

  // As Coordinator::PollForError.
  WaitId Poll(TaskId task, bool is_watched, StatusCallback done);
  bool CancelPoll(WaitId wait, const absl::Status& why);
  void EndPoll(TaskId task, const absl::Status& why);
  void EndPolls(const absl::Status& why);

  // Called, as a completion, for each task that has registered an error address.
  void SetErrorReport(ErrorReport report) { error_report_ = std::move(report); }
  // REQUIRES: the polls have ended.
  void BeginNewJob();

  size_t wait_count() const { return polls_.size(); }
  void ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const;
  // Adds a table named "polls".
  void AddTableSizes(TableSizes& sizes) const { sizes["polls"] = polls_.size(); }

 private:
  struct PendingPoll {
    WaitId wait;
    absl::Time since;
    StatusCallback done;
  };

  // Constant after construction.
  const CoordinatorOptions& options_;
  const Clock& clock_;
  const JobIdentity& job_;
  Membership& membership_;
  Barriers& barriers_;
  RegisterBarrier& register_barrier_;
  TopologyExchange& topology_;
  Completions& completions_;
  WaitIds& ids_;

  absl::Status error_;
  absl::btree_map<TaskId, PendingPoll> polls_;
  // Some client has polled: errors are delivered by polls, else by heartbeats.
  bool has_poller_ = false;
  ErrorReport error_report_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_JOB_FAILURE_H_
