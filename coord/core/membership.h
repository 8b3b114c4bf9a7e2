// SPDX-License-Identifier: Apache-2.0
// Membership: each task's state, incarnation and last sign of life.
#ifndef FERRY_COORD_CORE_MEMBERSHIP_H_
#define FERRY_COORD_CORE_MEMBERSHIP_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "coord/core/heartbeat_interval.h"
#include "coord/core/jobs.h"
#include "coord/core/options.h"
#include "coord/core/types.h"

namespace ferry::coord {

struct Task {
  TaskState state = TaskState::kDisconnected;
  Incarnation incarnation;
  absl::Status status;
  // This task alone may come back; the whole job can also be recoverable (CoordinatorOptions).
  bool recoverable = false;
  TaskFacts facts;
  uint64_t progress = 0;
  // InfinitePast before the first registration.
  absl::Time last_heartbeat = absl::InfinitePast();
  // As last_heartbeat, but also updated for a task in error.
  absl::Time last_heard = absl::InfinitePast();
  HeartbeatInterval heartbeat_interval;
  // One of its calls is pending on a connection that is known to be alive.
  bool has_live_poll = false;
  // When the connection of its error poll ended, unless it has called since.
  absl::Time connection_ended = absl::InfiniteFuture();
  // While disconnected: it has left with this error, and will not come back by itself.
  absl::Status left_with;
  // It waits for the others to shut down, and may disconnect.
  bool is_leaving = false;
  // When it is checked next.
  absl::Time next_check = absl::InfiniteFuture();
  // While disconnected: until then its heartbeats and polls are still accepted.
  absl::Time grace_end = absl::InfinitePast();
  // The table's version when its state last changed.
  int64_t version = 0;
};

// Not thread-safe: part of a Coordinator. Only records: the Coordinator handles the effects on
// other tasks. Every change of a state increments the version. How long a task may be silent:
// docs/protocols.md, "Signs of life".
class Membership final {
 public:
  // `options` outlives it.
  Membership(const Jobs& jobs, const CoordinatorOptions& options)
      : jobs_(jobs), options_(options), tasks_(jobs.size()) {}

  const Jobs& jobs() const { return jobs_; }
  int size() const { return static_cast<int>(tasks_.size()); }
  // REQUIRES: jobs().Contains(task).
  const Task& task(TaskId task) const { return tasks_[task.value()]; }
  int64_t version() const { return version_; }
  int connected_count() const { return connected_count_; }
  int error_count() const { return error_count_; }
  // Tasks with Task::left_with.
  int failed_leaver_count() const { return failed_leaver_count_; }

  void Connect(TaskId task, Incarnation incarnation, HeartbeatInterval heartbeat_interval,
               absl::Time now);
  void SetError(TaskId task, absl::Status why);
  // Its calls stay accepted for another heartbeat timeout.
  void Disconnect(TaskId task, absl::Time now);

  // A disconnected task has left for good with that error; Connect forgets it.
  void NoteLeftWith(TaskId task, absl::Status error);

  // Records a sign of life. Ignored for tasks that are not connected.
  void Touch(TaskId task, absl::Time now);
  // As Touch, for a heartbeat.
  void Beat(TaskId task, absl::Time now);
  // Sets whether a call of a connected task is pending on a connection whose end the caller will
  // report with NoteConnectionEnd.
  void SetHasLivePoll(TaskId task, bool has_live_poll, absl::Time now);
  // The connection of a connected task has ended; the task counts as dead unless it calls again
  // within ReconnectGrace.
  void NoteConnectionEnd(TaskId task, absl::Time now);
  // The task has called again.
  void NoteCall(TaskId task) { tasks_[task.value()].connection_ended = absl::InfiniteFuture(); }
  void SetLeaving(TaskId task) { tasks_[task.value()].is_leaving = true; }
  // Shifts every connected task's last sign of life by `stalled`, but not beyond `now`.
  void ExtendHeartbeatDeadlines(absl::Duration stalled, absl::Time now);
  // Records activity of any process of the job.
  void NoteActivity(absl::Time now) { last_activity_ = std::max(last_activity_, now); }
  void SetFacts(TaskId task, TaskFacts facts, bool recoverable);
  void SetProgress(TaskId task, uint64_t progress) { tasks_[task.value()].progress = progress; }

  // How long a task may be silent, given its heartbeats so far.
  absl::Duration SilenceLimit(const Task& task) const;
  // How long it may take to reconnect when its connection has ended.
  absl::Duration ReconnectGrace(const Task& task) const;

  // Returns connected tasks that have been silent for too long; each is checked again when its
  // deadline could next pass.
  std::vector<TaskId> TakeSilent(absl::Time now);
  absl::Time NextDeadline() const;
  // The last sign of life of any task in error; for those that never gave one, that of any process
  // of the job. InfinitePast if there are none.
  absl::Time LastHeardOfErrors() const;

  std::vector<TaskInfo> Snapshot() const;
  // "membership...."
  void AddTableSizes(TableSizes& sizes) const;
  // Disconnects and forgets all tasks, for a new job.
  void Reset();

 private:
  void SetState(Task& task, TaskState state);
  // Its pending call is currently the task's only sign of life.
  bool IsAliveByOpenCall(const Task& task) const;
  // When a connected task counts as dead unless it gives another sign of life.
  absl::Time SilenceDeadline(const Task& task, absl::Time now) const;
  void ScheduleCheck(TaskId task, absl::Time now);

  // Constant after construction.
  const Jobs& jobs_;
  const CoordinatorOptions& options_;

  std::vector<Task> tasks_;
  // When to check a connected task again: at or before its deadline.
  absl::btree_set<std::pair<absl::Time, TaskId>> checks_;
  int64_t version_ = 0;
  int connected_count_ = 0;
  int failed_leaver_count_ = 0;
  int error_count_ = 0;
  absl::Time last_activity_ = absl::InfinitePast();
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_MEMBERSHIP_H_
