// SPDX-License-Identifier: Apache-2.0
// States of tasks and their heartbeats.
#include "coord/membership.h"

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

void Membership::Connect(TaskId id, Incarnation incarnation, absl::Time now) {
  Task& task = tasks_[id.value()];
  task.incarnation = incarnation;
  task.status = absl::OkStatus();
  SetState(task, TaskState::kConnected);
  Touch(id, now);
  // A check left from an earlier life finds that it came too early and moves itself.
  checks_.emplace(now + heartbeat_timeout_, id);
}

void Membership::SetError(TaskId id, absl::Status why) {
  Task& task = tasks_[id.value()];
  task.status = std::move(why);
  SetState(task, TaskState::kError);
}

void Membership::Disconnect(TaskId id, absl::Time now) {
  Task& task = tasks_[id.value()];
  task.status = absl::OkStatus();
  task.grace_end = now + heartbeat_timeout_;
  NoteSignOfLife(now);
  SetState(task, TaskState::kDisconnected);
}

void Membership::Touch(TaskId id, absl::Time now) {
  // Also from a task in error: somebody of this job is still there.
  NoteSignOfLife(now);
  Task& task = tasks_[id.value()];
  task.last_heard = now;
  if (task.state == TaskState::kConnected) task.last_heartbeat = now;
}

absl::Time Membership::LastHeardOfErrors() const {
  absl::Time last = absl::InfinitePast();
  for (const Task& task : tasks_) {
    if (task.state != TaskState::kError) continue;
    const bool was_heard = task.last_heard != absl::InfinitePast();
    last = std::max(last, was_heard ? task.last_heard : last_sign_of_life_);
  }
  return last;
}

void Membership::ForgiveSilence(absl::Duration held_up, absl::Time now) {
  for (Task& task : tasks_) {
    task.last_heard = std::max(task.last_heard, std::min(task.last_heard + held_up, now));
    // Checks that come too early are made again.
    if (task.state != TaskState::kConnected) continue;
    task.last_heartbeat =
        std::max(task.last_heartbeat, std::min(task.last_heartbeat + held_up, now));
  }
}

void Membership::SetFacts(TaskId id, TaskFacts facts, bool recoverable) {
  tasks_[id.value()].facts = std::move(facts);
  tasks_[id.value()].recoverable = recoverable;
}

std::vector<TaskId> Membership::TakeSilent(absl::Time now) {
  std::vector<TaskId> silent;
  std::vector<std::pair<absl::Time, TaskId>> again;
  while (!checks_.empty() && checks_.begin()->first <= now) {
    const TaskId id = checks_.begin()->second;
    checks_.erase(checks_.begin());
    const Task& task = tasks_[id.value()];
    if (task.state != TaskState::kConnected) continue;
    const absl::Time runs_out = task.last_heartbeat + heartbeat_timeout_;
    if (runs_out <= now) {
      silent.push_back(id);
    } else {
      again.emplace_back(runs_out, id);
    }
  }
  checks_.insert(again.begin(), again.end());
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
