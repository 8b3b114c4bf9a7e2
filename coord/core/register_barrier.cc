// SPDX-License-Identifier: Apache-2.0
// Arrival, withdrawal and timeouts at the register barrier.
#include "coord/core/register_barrier.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/text.h"
#include "coord/core/errors.h"

namespace ferry::coord {

absl::string_view RegisterBarrier::Id() { return "[Init]Wait_for_all_tasks_to_register"; }

std::vector<TaskId> RegisterBarrier::Tasks() const {
  std::vector<TaskId> tasks;
  for (const auto& [task, waiting] : waiting_) tasks.push_back(task);
  return tasks;
}

const Registration* RegisterBarrier::Find(TaskId task) const {
  const auto waiting = waiting_.find(task);
  return waiting != waiting_.end() ? &waiting->second.registration : nullptr;
}

BarrierArrival RegisterBarrier::Arrival(TaskId task) const {
  return {
      .id = std::string(Id()),
      .timeout = options_.register_barrier ? options_.register_timeout : absl::InfiniteDuration(),
      .caller = task,
      .one_shot = true};
}

WaitId RegisterBarrier::Wait(Registration registration, absl::Time now, StatusCallback done) {
  const TaskId task = registration.task;
  Supersede(task);
  const WaitId wait = barriers_.Arrive(
      Arrival(task), now, [done = std::move(done)](const BarrierResult& result) mutable {
        std::move(done)(result.status);
      });
  const absl::Time deadline = now + registration.own_timeout;
  if (deadline != absl::InfiniteFuture()) deadlines_.emplace(deadline, task);
  waiting_[task] = Waiting{std::move(registration), wait, now, deadline};
  return wait;
}

void RegisterBarrier::ArriveWithoutWaiting(TaskId task, absl::Time now) {
  if (barriers_.IsOver(Id())) return;
  const WaitId wait = barriers_.Arrive(Arrival(task), now, [](const BarrierResult&) {});
  if (wait != kNoWait) barriers_.Cancel(wait, absl::OkStatus(), /*withdraw=*/false);
}

void RegisterBarrier::Supersede(TaskId task) {
  const auto earlier = waiting_.find(task);
  if (earlier == waiting_.end()) return;
  // ABORTED would make that client retry and evict its successor.
  barriers_.Cancel(earlier->second.wait,
                   absl::AlreadyExistsError(
                       absl::StrCat("this registration of ", jobs_.Name(task),
                                    " was superseded by a request from a newer incarnation")),
                   /*withdraw=*/false);
  Remove(task);
}

void RegisterBarrier::Remove(TaskId task) {
  const auto waiting = waiting_.find(task);
  if (waiting == waiting_.end()) return;
  deadlines_.erase({waiting->second.deadline, task});
  waiting_.erase(waiting);
}

bool RegisterBarrier::Remove(WaitId wait) {
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), [wait](const auto& entry) {
    return entry.second.wait == wait;
  });
  if (waiting == waiting_.end()) return false;
  Remove(waiting->first);
  return true;
}

void RegisterBarrier::Withdraw(TaskId task, const absl::Status& why) {
  barriers_.WithdrawArrivalAt(std::string(Id()), task, why);
  Remove(task);
}

bool RegisterBarrier::Leave(TaskId task, Incarnation incarnation) {
  const auto waiting = waiting_.find(task);
  if (waiting == waiting_.end() || waiting->second.registration.incarnation != incarnation) {
    return false;
  }
  barriers_.Cancel(
      waiting->second.wait,
      absl::CancelledError(absl::StrCat(jobs_.Name(task), " left while it was joining")),
      /*withdraw=*/true);
  Remove(task);
  return true;
}

void RegisterBarrier::Fail(const absl::Status& error) {
  if (options_.register_barrier) return barriers_.Fail(Id(), error);
  for (const auto& [task, waiting] : std::exchange(waiting_, {})) {
    barriers_.Cancel(waiting.wait, error, /*withdraw=*/true);
  }
  deadlines_.clear();
}

void RegisterBarrier::Expire(absl::Time now) {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return;
  std::vector<TaskId> missing;
  for (int i = 0; i < jobs_.size(); ++i) {
    if (!waiting_.contains(TaskId(i))) missing.push_back(TaskId(i));
  }
  const std::string ranges = jobs_.Ranges(missing);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const TaskId task = deadlines_.begin()->second;
    const Waiting& waiting = waiting_.find(task)->second;
    const absl::Status late =
        WithMissingTasks(absl::DeadlineExceededError(
                             absl::StrCat("waited ", ShortDuration(now - waiting.since),
                                          " for all tasks to connect; missing tasks: ", ranges)),
                         ranges);
    barriers_.Cancel(waiting.wait, late, /*withdraw=*/true);
    Remove(task);
  }
}

absl::Time RegisterBarrier::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

std::vector<Registration> RegisterBarrier::Take() {
  std::vector<Registration> registrations;
  registrations.reserve(waiting_.size());
  for (auto& [task, waiting] : waiting_) registrations.push_back(std::move(waiting.registration));
  waiting_.clear();
  deadlines_.clear();
  return registrations;
}

void RegisterBarrier::AddTableSizes(TableSizes& sizes) const {
  sizes["joining"] = waiting_.size();
  sizes["joining.deadlines"] = deadlines_.size();
}

}  // namespace ferry::coord
