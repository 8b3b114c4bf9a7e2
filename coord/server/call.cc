// SPDX-License-Identifier: Apache-2.0
// Tracks callers by address.
#include "coord/server/call.h"

#include <algorithm>
#include <utility>

namespace ferry::coord {

void Frontend::NoteConnection(const std::string& address) {
  absl::MutexLock lock(&mu_);
  callers_.erase(address);
  polls_at_.erase(address);
}

void Frontend::NoteCaller(const std::string& address, TaskId task, Incarnation life) {
  // Ports are reused and connections come and go; clearing the table only costs some names in
  // reports.
  constexpr size_t kMaxCallers = 100'000;
  absl::MutexLock lock(&mu_);
  if (callers_.size() >= kMaxCallers && !callers_.contains(address)) callers_.clear();
  std::vector<Caller>& callers = callers_[address];
  const auto known = std::find_if(callers.begin(), callers.end(),
                                  [task](const Caller& caller) { return caller.task == task; });
  if (known != callers.end()) {
    known->life = life;
  } else {
    callers.push_back({task, life});
  }
}

std::vector<TaskId> Frontend::CallersAt(const std::string& address) const {
  absl::MutexLock lock(&mu_);
  std::vector<TaskId> tasks;
  const auto found = callers_.find(address);
  if (found == callers_.end()) return tasks;
  for (const Caller& caller : found->second) tasks.push_back(caller.task);
  return tasks;
}

TaskId Frontend::CallerAt(const std::string& address) const {
  absl::MutexLock lock(&mu_);
  const auto found = callers_.find(address);
  return found == callers_.end() || found->second.size() != 1 ? kNoTask : found->second[0].task;
}

absl::Status Frontend::CheckCaller(const Coordinator& coordinator, const UnaryCall& call,
                                   TaskId task) const {
  if (coordinator.epoch() == 1) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  const auto found = callers_.find(call.peer());
  if (found == callers_.end()) return absl::OkStatus();
  for (const Caller& caller : found->second) {
    if (caller.task == task) return coordinator.CheckIncarnation(task, caller.life);
  }
  return absl::OkStatus();
}

absl::Status Frontend::CheckCallers(const UnaryCall& call) {
  if (epoch_.load(std::memory_order_relaxed) == 1) return absl::OkStatus();
  std::vector<Caller> callers;
  {
    absl::MutexLock lock(&mu_);
    const auto found = callers_.find(call.peer());
    if (found == callers_.end()) return absl::OkStatus();
    callers = found->second;
  }
  return executor_.Run([&callers](Coordinator& coordinator) {
    absl::Status status;
    for (const Caller& caller : callers) {
      status = coordinator.CheckIncarnation(caller.task, caller.life);
      if (status.ok()) break;
    }
    return status;
  });
}

void Frontend::Drop(WaitId wait) {
  const bool is_quorum = WaitIds::Kind(wait) == WaitKind::kQuorum;
  const bool is_dropped =
      is_quorum
          ? cancel_quorum_ && cancel_quorum_(wait)
          : executor_.Run([wait](Coordinator& coordinator) { return coordinator.Cancel(wait); });
  if (is_dropped) CountDroppedWait();
}

void Frontend::NotePoll(const std::string& address, TaskId task) {
  // As in NoteCaller: the failure of a task that is dropped here is detected by its heartbeats.
  constexpr size_t kMaxAddresses = 100'000;
  absl::MutexLock lock(&mu_);
  if (polls_at_.size() >= kMaxAddresses && !polls_at_.contains(address)) polls_at_.clear();
  const uint64_t number = ++last_poll_;
  polls_[task] = number;
  std::vector<LostPoll>& polls = polls_at_[address];
  std::erase_if(polls, [task](const LostPoll& poll) { return poll.task == task; });
  polls.push_back({task, number});
}

void Frontend::ForgetPoll(TaskId task) {
  absl::MutexLock lock(&mu_);
  polls_.erase(task);
}

std::vector<Frontend::LostPoll> Frontend::TakeLostPolls(const std::string& address) {
  absl::MutexLock lock(&mu_);
  const auto found = polls_at_.find(address);
  if (found == polls_at_.end()) return {};
  std::vector<LostPoll> lost = std::move(found->second);
  polls_at_.erase(found);
  return lost;
}

void Frontend::TellLost(const std::vector<LostPoll>& polls) {
  std::vector<TaskId> tasks;
  {
    absl::MutexLock lock(&mu_);
    for (const LostPoll& poll : polls) {
      const auto latest = polls_.find(poll.task);
      if (latest != polls_.end() && latest->second == poll.number) tasks.push_back(poll.task);
    }
  }
  if (tasks.empty()) return;
  executor_.Run([&tasks](Coordinator& coordinator) {
    for (const TaskId task : tasks) coordinator.NoteConnectionEnd(task);
  });
}

}  // namespace ferry::coord
