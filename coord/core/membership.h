// SPDX-License-Identifier: Apache-2.0
// Membership: which task is in which state, in which life, and when it was last heard of.
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
  // It alone may come back; the whole job can also be recoverable (CoordinatorOptions).
  bool recoverable = false;
  TaskFacts facts;
  uint64_t progress = 0;
  // InfinitePast before the first registration.
  absl::Time last_heartbeat = absl::InfinitePast();
  // As last_heartbeat, also of a task in error.
  absl::Time last_heard = absl::InfinitePast();
  HeartbeatInterval heartbeat_interval;
  // One of its calls is parked on a connection that is known to be alive.
  bool has_live_poll = false;
  // When the connection ended by which it waited for errors, unless it has called since.
  absl::Time connection_ended = absl::InfiniteFuture();
  // It waits for the others to shut down, and may disconnect.
  bool is_leaving = false;
  // When it is checked next.
  absl::Time next_check = absl::InfiniteFuture();
  // While disconnected: until then its heartbeats and polls are still welcome.
  absl::Time grace_end = absl::InfinitePast();
  // Of the table, when its state last changed.
  int64_t version = 0;
};

// Not thread-safe: part of a Coordinator. Only records: what a change means for the others is the
// Coordinator's concern. Every change of a state makes the version grow.
// How long a task may be silent: docs/protocols.md, "Signs of life".
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

  void Connect(TaskId task, Incarnation incarnation, HeartbeatInterval heartbeat_interval,
               absl::Time now);
  void SetError(TaskId task, absl::Status why);
  // Leaves it welcome for another heartbeat timeout.
  void Disconnect(TaskId task, absl::Time now);

  // A sign of life. Silent for tasks that are not connected.
  void Touch(TaskId task, absl::Time now);
  // The same, by a heartbeat.
  void Beat(TaskId task, absl::Time now);
  // Records whether a call of a connected task is parked on a connection whose end the caller will
  // report with NoteConnectionEnd.
  void SetHasLivePoll(TaskId task, bool has_live_poll, absl::Time now);
  // The connection of a connected task has ended; it is gone unless it calls again within
  // ReconnectGrace.
  void NoteConnectionEnd(TaskId task, absl::Time now);
  // It has called again.
  void NoteCall(TaskId task) { tasks_[task.value()].connection_ended = absl::InfiniteFuture(); }
  void SetLeaving(TaskId task) { tasks_[task.value()].is_leaving = true; }
  // As if every connected task had been heard of so much later, though not after `now`.
  void ExtendHeartbeatDeadlines(absl::Duration held_up, absl::Time now);
  // Somebody of the job is there, whoever.
  void NoteSignOfLife(absl::Time now) { last_sign_of_life_ = std::max(last_sign_of_life_, now); }
  void SetFacts(TaskId task, TaskFacts facts, bool recoverable);
  void SetProgress(TaskId task, uint64_t progress) { tasks_[task.value()].progress = progress; }

  // How long a task may be silent, given its heartbeats so far.
  absl::Duration SilenceLimit(const Task& task) const;
  // How long it may take to reconnect when its connection has ended.
  absl::Duration ReconnectGrace(const Task& task) const;

  // Connected tasks that have been silent for too long; each is checked again when its time could
  // next run out.
  std::vector<TaskId> TakeSilent(absl::Time now);
  absl::Time NextDeadline() const;
  // The last sign of life of any task in error; of anyone at all for those that were never heard
  // of. InfinitePast if there are none.
  absl::Time LastHeardOfErrors() const;

  std::vector<TaskInfo> Snapshot() const;
  // "membership...."
  void AddTableSizes(TableSizes& sizes) const;
  // Everyone disconnected and unknown again, as a new job finds it.
  void Reset();

 private:
  void SetState(Task& task, TaskState state);
  // Its parked call is the only sign of life of the task at present.
  bool LivesByItsCall(const Task& task) const;
  // When a connected task is considered dead unless it gives another sign of life.
  absl::Time RunsOut(const Task& task, absl::Time now) const;
  void ScheduleCheck(TaskId task, absl::Time now);

  // Constant after construction.
  const Jobs& jobs_;
  const CoordinatorOptions& options_;

  std::vector<Task> tasks_;
  // When to look at a connected task again: at or before its heartbeat runs out.
  absl::btree_set<std::pair<absl::Time, TaskId>> checks_;
  int64_t version_ = 0;
  int connected_count_ = 0;
  int error_count_ = 0;
  absl::Time last_sign_of_life_ = absl::InfinitePast();
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_MEMBERSHIP_H_
