// SPDX-License-Identifier: Apache-2.0
// The states of tasks and their heartbeats.
#include "coord/core/membership.h"

#include <algorithm>
#include <utility>

namespace ferry::coord {

void Membership::SetState(Task& task, TaskState state) {
  connected_count_ -= task.state == TaskState::kConnected;
  error_count_ -= task.state == TaskState::kError;
  task.state = state;
  connected_count_ += state == TaskState::kConnected;
  error_count_ += state == TaskState::kError;
  task.version = ++version_;
}

void Membership::Connect(TaskId id, Incarnation incarnation, HeartbeatInterval heartbeat_interval,
                         absl::Time now) {
  Task& task = tasks_[id.value()];
  task.incarnation = incarnation;
  task.status = absl::OkStatus();
  failed_leaver_count_ -= task.left_with.ok() ? 0 : 1;
  task.left_with = absl::OkStatus();
  task.heartbeat_interval = heartbeat_interval;
  task.has_live_poll = false;
  task.is_leaving = false;
  SetState(task, TaskState::kConnected);
  Touch(id, now);
}

void Membership::SetError(TaskId id, absl::Status why) {
  Task& task = tasks_[id.value()];
  task.status = std::move(why);
  SetState(task, TaskState::kError);
}

void Membership::Disconnect(TaskId id, absl::Time now) {
  Task& task = tasks_[id.value()];
  task.status = absl::OkStatus();
  task.grace_end = now + options_.heartbeat_timeout;
  NoteActivity(now);
  SetState(task, TaskState::kDisconnected);
}

void Membership::NoteLeftWith(TaskId id, absl::Status error) {
  Task& task = tasks_[id.value()];
  failed_leaver_count_ += (error.ok() ? 0 : 1) - (task.left_with.ok() ? 0 : 1);
  task.left_with = std::move(error);
}

void Membership::Touch(TaskId id, absl::Time now) {
  // Also for a task in error: a process of this job still exists.
  NoteActivity(now);
  Task& task = tasks_[id.value()];
  task.last_heard = now;
  if (task.state != TaskState::kConnected) return;
  task.last_heartbeat = now;
  NoteCall(id);
  ScheduleCheck(id, now);
}

void Membership::Beat(TaskId id, absl::Time now) {
  tasks_[id.value()].heartbeat_interval.Beat(now);
  Touch(id, now);
}

void Membership::SetHasLivePoll(TaskId id, bool has_live_poll, absl::Time now) {
  Task& task = tasks_[id.value()];
  if (task.has_live_poll == has_live_poll) return;
  const bool lived_by_it = IsAliveByOpenCall(task);
  task.has_live_poll = has_live_poll;
  if (task.state != TaskState::kConnected) return;
  // It was alive until now.
  if (lived_by_it) task.last_heartbeat = std::max(task.last_heartbeat, now);
  ScheduleCheck(id, now);
}

void Membership::NoteConnectionEnd(TaskId id, absl::Time now) {
  Task& task = tasks_[id.value()];
  if (task.state != TaskState::kConnected) return;
  task.connection_ended = now;
  ScheduleCheck(id, now);
}

absl::Duration Membership::SilenceLimit(const Task& task) const {
  const absl::Duration told = options_.heartbeat_timeout;
  // Zero while it is unknown.
  const absl::Duration learned = task.heartbeat_interval.timeout();
  if (learned > told) return options_.heartbeat_timeout_is_limit ? told : learned;
  return task.heartbeat_interval.is_certain() ? learned : told;
}

absl::Duration Membership::ReconnectGrace(const Task& task) const {
  // A live client polls for errors again at once; a busy machine may delay it.
  constexpr absl::Duration kMostGrace = absl::Seconds(3);
  return std::min(SilenceLimit(task) / 2, kMostGrace);
}

bool Membership::IsAliveByOpenCall(const Task& task) const {
  if (!task.has_live_poll) return false;
  const bool is_seldom = task.heartbeat_interval.timeout() > options_.heartbeat_timeout;
  // A task with frequent enough heartbeats is judged by these alone, as its client expects.
  return is_seldom ? options_.heartbeat_timeout_is_limit : !task.heartbeat_interval.is_certain();
}

absl::Time Membership::SilenceDeadline(const Task& task, absl::Time now) const {
  const absl::Duration limit = SilenceLimit(task);
  absl::Time at = task.last_heartbeat + limit;
  if (IsAliveByOpenCall(task)) at = std::max(at, now + limit);
  if (!task.is_leaving) at = std::min(at, task.connection_ended + ReconnectGrace(task));
  return at;
}

void Membership::ScheduleCheck(TaskId id, absl::Time now) {
  Task& task = tasks_[id.value()];
  const absl::Time at = SilenceDeadline(task, now);
  // A check that comes too early reschedules itself.
  if (task.next_check <= at) return;
  task.next_check = at;
  checks_.emplace(at, id);
}

absl::Time Membership::LastHeardOfErrors() const {
  absl::Time last = absl::InfinitePast();
  for (const Task& task : tasks_) {
    if (task.state != TaskState::kError) continue;
    const bool was_heard = task.last_heard != absl::InfinitePast();
    last = std::max(last, was_heard ? task.last_heard : last_activity_);
  }
  return last;
}

void Membership::ExtendHeartbeatDeadlines(absl::Duration stalled, absl::Time now) {
  for (Task& task : tasks_) {
    task.last_heard = std::max(task.last_heard, std::min(task.last_heard + stalled, now));
    // Checks that come too early are rescheduled.
    if (task.state != TaskState::kConnected) continue;
    task.last_heartbeat =
        std::max(task.last_heartbeat, std::min(task.last_heartbeat + stalled, now));
    if (task.connection_ended != absl::InfiniteFuture()) {
      task.connection_ended =
          std::max(task.connection_ended, std::min(task.connection_ended + stalled, now));
    }
  }
}

void Membership::SetFacts(TaskId id, TaskFacts facts, bool recoverable) {
  tasks_[id.value()].facts = std::move(facts);
  tasks_[id.value()].recoverable = recoverable;
}

std::vector<TaskId> Membership::TakeSilent(absl::Time now) {
  std::vector<TaskId> silent;
  std::vector<TaskId> again;
  while (!checks_.empty() && checks_.begin()->first <= now) {
    const auto [at, id] = *checks_.begin();
    checks_.erase(checks_.begin());
    Task& task = tasks_[id.value()];
    if (task.next_check == at) task.next_check = absl::InfiniteFuture();
    if (task.state != TaskState::kConnected) continue;
    (SilenceDeadline(task, now) <= now ? silent : again).push_back(id);
  }
  for (const TaskId id : again) ScheduleCheck(id, now);
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  return silent;
}

absl::Time Membership::NextDeadline() const {
  return checks_.empty() ? absl::InfiniteFuture() : checks_.begin()->first;
}

std::vector<TaskInfo> Membership::Snapshot() const {
  std::vector<TaskInfo> infos;
  infos.reserve(tasks_.size());
  for (int i = 0; i < size(); ++i) {
    const Task& task = tasks_[i];
    infos.push_back({TaskId(i), task.state, task.incarnation, task.status, task.version});
  }
  return infos;
}

void Membership::Reset() {
  for (Task& task : tasks_) {
    SetState(task, TaskState::kDisconnected);
    const int64_t version = task.version;
    task = Task{};
    task.version = version;
  }
  checks_.clear();
  failed_leaver_count_ = 0;
}

void Membership::AddTableSizes(TableSizes& sizes) const {
  std::vector<bool> is_checked(tasks_.size(), false);
  for (const auto& [when, id] : checks_) is_checked[static_cast<size_t>(id.value())] = true;
  size_t unchecked = 0;
  size_t connected = 0;
  size_t failed = 0;
  for (int i = 0; i < size(); ++i) {
    failed += tasks_[i].state == TaskState::kError ? 1 : 0;
    if (tasks_[i].state != TaskState::kConnected) continue;
    ++connected;
    unchecked += is_checked[static_cast<size_t>(i)] ? 0 : 1;
  }
  sizes["membership.checks"] = checks_.size();
  sizes["membership.connected_without_check"] = unchecked;
  sizes["membership.connected"] = connected;
  sizes["membership.connected_count"] = static_cast<size_t>(connected_count_);
  sizes["membership.failed"] = failed;
  sizes["membership.error_count"] = static_cast<size_t>(error_count_);
}

}  // namespace ferry::coord
