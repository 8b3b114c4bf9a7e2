// SPDX-License-Identifier: Apache-2.0
// Composition: construction, polls, watches, barriers, stop and time. For tasks see
// coordinator_tasks.cc, for the end of tasks and jobs coordinator_end.cc.
#include "coord/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coord/core/errors.h"

namespace ferry::coord {

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(CoordinatorOptions options,
                                                                 const Clock& clock,
                                                                 uint64_t incarnation) {
  absl::StatusOr<Jobs> jobs = Jobs::Create(options.jobs);
  if (!jobs.ok()) return jobs.status();
  return std::unique_ptr<Coordinator>(
      new Coordinator(std::move(options), clock, *std::move(jobs), incarnation));
}

Coordinator::Coordinator(CoordinatorOptions options, const Clock& clock, Jobs jobs,
                         uint64_t incarnation)
    : options_(std::move(options)),
      clock_(clock),
      started_(clock.Now()),
      jobs_(std::move(jobs)),
      membership_(jobs_, options_),
      former_incarnations_(static_cast<size_t>(jobs_.size())),
      store_(options_, completions_, ids_),
      barriers_(options_, membership_, completions_, ids_),
      alive_(membership_, completions_, ids_),
      topology_(jobs_, completions_, ids_),
      incarnation_(incarnation),
      device_infos_(std::make_shared<std::vector<std::string>>(jobs_.size())) {}

absl::Status Coordinator::CheckRunning() const {
  if (!is_stopped_) return absl::OkStatus();
  return CoordinationError(absl::InternalError("the coordinator has stopped"));
}

absl::Status Coordinator::CheckTask(TaskId task) const {
  if (is_stopped_) return CheckRunning();
  if (jobs_.Contains(task)) return absl::OkStatus();
  return CoordinationError(absl::InvalidArgumentError(
      absl::StrCat("Unexpected task ", task.value(), " is not in the cluster: it has tasks 0 to ",
                   jobs_.size() - 1)));
}

WaitId Coordinator::Answer(StatusCallback done, absl::Status status) {
  completions_.Post(std::move(done), std::move(status));
  return kNoWait;
}

WaitId Coordinator::PollForError(TaskId id, StatusCallback done, bool is_watched) {
  if (absl::Status status = CheckTask(id); !status.ok()) return Answer(std::move(done), status);
  has_poller_ = true;
  const Task& task = membership_.task(id);
  if (task.state == TaskState::kDisconnected && Now() >= task.grace_end) {
    return Answer(std::move(done),
                  CoordinationError(absl::FailedPreconditionError(absl::StrCat(
                      "Task ", jobs_.Name(id),
                      " polls for errors but has not been registered or has disconnected"))));
  }
  if (task.state == TaskState::kError) {
    return Answer(std::move(done),
                  CoordinationError(absl::FailedPreconditionError(absl::StrCat(
                      "Task ", jobs_.Name(id), " polls for errors but is already in error state: ",
                      task.status.message()))));
  }
  if (!job_error_.ok()) return Answer(std::move(done), job_error_);
  Poll& poll = polls_[id];
  if (poll.done) {
    Answer(std::move(poll.done), CoordinationError(absl::CancelledError(absl::StrCat(
                                     "a newer poll of ", jobs_.Name(id), " takes its place"))));
  }
  poll = Poll{ids_.Next(WaitKind::kPoll), Now(), std::move(done)};
  membership_.NoteCall(id);
  membership_.SetHasLivePoll(id, is_watched, poll.since);
  return poll.wait;
}

Coordinator::TablePtr Coordinator::Table() const {
  return std::make_shared<TaskTable>(TaskTable{membership_.Snapshot(), membership_.version()});
}

WaitId Coordinator::WatchTasks(int64_t version, TaskId caller, TableCallback done) {
  absl::StatusOr<TablePtr> answer;
  if (is_stopped_) {
    answer = CheckRunning();
  } else if (version > membership_.version()) {
    answer = CoordinationError(absl::InvalidArgumentError(
        absl::StrCat("version ", version, " of the task table has not been yet; it is at ",
                     membership_.version())));
  } else if (version == membership_.version()) {
    const WaitId wait = ids_.Next(WaitKind::kWatchTasks);
    watches_.emplace(wait, Watch{caller, Now(), std::move(done)});
    return wait;
  } else {
    answer = Table();
  }
  completions_.Post(std::move(done), std::move(answer));
  return kNoWait;
}

WaitId Coordinator::GetAliveTasks(TaskId caller, std::vector<TaskId> tasks,
                                  AliveRounds::DoneCallback done) {
  if (absl::Status status = CheckTask(caller); !status.ok()) {
    completions_.Post(std::move(done), std::move(status));
    return kNoWait;
  }
  return alive_.Ask(caller, std::move(tasks), Now(), std::move(done));
}

WaitId Coordinator::GetKeys(std::vector<std::string> keys, TaskId task, absl::Duration timeout,
                            Store::GetCallback done) {
  if (absl::Status status = CheckRunning(); !status.ok()) {
    completions_.Post(std::move(done), std::move(status));
    return kNoWait;
  }
  const absl::Time now = Now();
  return store_.Get(std::move(keys), task, now, now + timeout, std::move(done));
}

WaitId Coordinator::Barrier(BarrierArrival arrival, Barriers::DoneCallback done) {
  if (absl::Status status = CheckTask(arrival.caller); !status.ok()) {
    completions_.Post(std::move(done), BarrierResult{status, arrival.counter});
    return kNoWait;
  }
  const WaitId wait = barriers_.Arrive(std::move(arrival), Now(), std::move(done));
  // The barrier may be one of the coordinator's own.
  Settle();
  return wait;
}

absl::Status Coordinator::CancelBarrier(absl::string_view id, int64_t counter) {
  if (absl::Status status = CheckRunning(); !status.ok()) return status;
  absl::Status status = barriers_.CancelBarrier(id, counter);
  Settle();
  return status;
}

WaitId Coordinator::EnumerateDevices(TaskId task, LocalTopology local, absl::Duration timeout,
                                     TopologyExchange::DoneCallback done, std::string as_told) {
  if (absl::Status status = CheckTask(task); !status.ok()) {
    completions_.Post(std::move(done), std::move(status));
    return kNoWait;
  }
  const absl::Time now = Now();
  const WaitId wait = topology_.Enumerate(task, std::move(local), now, now + timeout,
                                          std::move(done), std::move(as_told));
  if (wait == kNoWait || job_error_.ok()) return wait;
  // In a failed job, the missing tasks will not report.
  topology_.Cancel(wait, job_error_);
  return kNoWait;
}

bool Coordinator::Cancel(WaitId wait) {
  const absl::Status why = CoordinationError(absl::CancelledError("the caller cancelled the wait"));
  switch (WaitIds::Kind(wait)) {
    case WaitKind::kGet:
      return store_.Cancel(wait, why);
    case WaitKind::kBarrier: {
      const auto joining =
          std::find_if(joining_.begin(), joining_.end(),
                       [wait](const auto& entry) { return entry.second.wait == wait; });
      const bool is_joining = joining != joining_.end();
      if (is_joining) StopJoining(joining->first);
      return barriers_.Cancel(wait, why, /*withdraw=*/is_joining);
    }
    case WaitKind::kPoll: {
      const auto poll = std::find_if(polls_.begin(), polls_.end(), [wait](const auto& entry) {
        return entry.second.wait == wait;
      });
      if (poll == polls_.end()) return false;
      membership_.SetHasLivePoll(poll->first, false, Now());
      Answer(std::move(poll->second.done), why);
      polls_.erase(poll);
      return true;
    }
    case WaitKind::kWatchTasks: {
      const auto watch = watches_.find(wait);
      if (watch == watches_.end()) return false;
      completions_.Post(std::move(watch->second.done), why);
      watches_.erase(watch);
      return true;
    }
    case WaitKind::kAlive:
      return alive_.Cancel(wait, why);
    case WaitKind::kEnumerate:
      return topology_.Cancel(wait, why);
    case WaitKind::kFailJoining: {
      const auto failure = joining_failures_.find(wait);
      if (failure == joining_failures_.end()) return false;
      Answer(std::move(failure->second.done), why);
      joining_failures_.erase(failure);
      return true;
    }
    case WaitKind::kWatchJoining: {
      const auto watch = joining_watches_.find(wait);
      if (watch == joining_watches_.end()) return false;
      Answer(std::move(watch->second.done), why);
      joining_watches_.erase(watch);
      return true;
    }
  }
  return false;
}

void Coordinator::Stop() {
  is_stopped_ = true;
  const absl::Status cancelled =
      CoordinationError(absl::CancelledError("the coordinator is stopping"));
  joining_.clear();
  joining_deadlines_.clear();
  AnswerJoiningFailures(cancelled);
  for (auto& [wait, watch] : joining_watches_) Answer(std::move(watch.done), cancelled);
  joining_watches_.clear();
  told_tasks_.clear();
  for (auto& [task, poll] : polls_) Answer(std::move(poll.done), cancelled);
  polls_.clear();
  barriers_.Clear(absl::AbortedError("the coordinator is stopping"));
  store_.Clear(cancelled);
  alive_.Clear(cancelled);
  topology_.Clear(cancelled);
  const TablePtr nothing = std::make_shared<TaskTable>(TaskTable{{}, -1});
  for (auto& [wait, watch] : watches_) {
    completions_.Post(std::move(watch.done), nothing);
  }
  watches_.clear();
}

absl::Time Coordinator::NextDeadline() const {
  if (is_stopped_) return absl::InfiniteFuture();
  absl::Time next = std::min({membership_.NextDeadline(), store_.NextDeadline(),
                              barriers_.NextDeadline(), topology_.NextDeadline()});
  if (!joining_deadlines_.empty()) next = std::min(next, joining_deadlines_.begin()->first);
  // Few: one for each rejected process.
  for (const auto& [wait, failure] : joining_failures_) next = std::min(next, failure.deadline);
  return next;
}

void Coordinator::Advance() {
  if (is_stopped_) return;
  const absl::Time now = Now();
  store_.Expire(now);
  topology_.Expire(now);
  ExpireJoining(now);
  ExpireJoiningFailures(now);
  barriers_.Expire(now);
  ExpireSilentTasks(now);
  Settle();
}

void Coordinator::Settle() {
  SettleRegisterBarrier();
  SettleShutdownBarrier();
  if (!joining_watches_.empty()) {
    if (const absl::Status failure = PresentJoiningFailure(); !failure.ok()) {
      TellJoiningWatches(failure);
    }
  }
  if (settled_version_ == membership_.version()) return;
  settled_version_ = membership_.version();
  alive_.Reconsider();
  if (watches_.empty()) return;
  const TablePtr table = Table();
  for (auto& [wait, watch] : watches_) {
    completions_.Post(std::move(watch.done), table);
  }
  watches_.clear();
}

std::vector<TaskId> Coordinator::JoiningTasks() const {
  std::vector<TaskId> tasks;
  for (const auto& [task, joining] : joining_) tasks.push_back(task);
  return tasks;
}

const TaskFacts& Coordinator::FactsOf(TaskId task) const {
  const auto joining = joining_.find(task);
  return joining != joining_.end() ? joining->second.registration.facts
                                   : membership_.task(task).facts;
}

std::vector<WaitInfo> Coordinator::Waits() const {
  std::vector<WaitInfo> waits;
  const auto add = [&waits](const WaitInfo& wait) { waits.push_back(wait); };
  store_.ForEachWait(add);
  barriers_.ForEachWait(add);
  alive_.ForEachWait(add);
  topology_.ForEachWait(add);
  for (const auto& [task, poll] : polls_) waits.push_back({task, "errors of the job", poll.since});
  for (const auto& [wait, failure] : joining_failures_) {
    waits.push_back({kNoTask, "a task that joins, to tell it of one that cannot", failure.since});
  }
  for (const auto& [wait, watch] : joining_watches_) {
    waits.push_back({watch.caller, "news of a task that cannot join", watch.since});
  }
  for (const auto& [wait, watch] : watches_) {
    if (watch.caller == kCoordinatorItself) continue;
    waits.push_back({watch.caller, "a change of the task table", watch.since});
  }
  return waits;
}

size_t Coordinator::wait_count() const {
  return store_.wait_count() + barriers_.wait_count() + alive_.wait_count() +
         topology_.wait_count() + polls_.size() + watches_.size() + joining_failures_.size() +
         joining_watches_.size();
}

TableSizes Coordinator::InnerTableSizes() const {
  TableSizes sizes;
  membership_.AddTableSizes(sizes);
  former_incarnations_.AddTableSizes(sizes);
  store_.AddTableSizes(sizes);
  barriers_.AddTableSizes(sizes);
  alive_.AddTableSizes(sizes);
  topology_.AddTableSizes(sizes);
  sizes["joining"] = joining_.size();
  sizes["joining.deadlines"] = joining_deadlines_.size();
  sizes["joining.failures"] = joining_failures_.size();
  sizes["joining.told"] = told_tasks_.size();
  sizes["joining.watches"] = joining_watches_.size();
  sizes["polls"] = polls_.size();
  sizes["watches"] = watches_.size();
  return sizes;
}

}  // namespace ferry::coord
