// SPDX-License-Identifier: Apache-2.0
// Failed tasks, the propagation of the job's first error, and polls for it.
#include "coord/core/job_failure.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "coord/core/errors.h"

namespace ferry::coord {

bool JobFailure::IsRecoverable(TaskId task) const {
  return options_.recoverable || membership_.task(task).recoverable;
}

void JobFailure::FailTask(TaskId id, absl::Status error) {
  FERRY_LOG_INFO(kCoord, "task failed: task={}: {}", id.value(), error);
  membership_.SetError(id, error);
  // Its own poll is not answered; the client learns of the error by its heartbeat.
  LeaveBarriers(id, error);
}

void JobFailure::FailAllTasks(const absl::Status& error) {
  for (int i = 0; i < membership_.size(); ++i) {
    if (membership_.task(TaskId(i)).state != TaskState::kError) FailTask(TaskId(i), error);
  }
}

void JobFailure::LeaveBarriers(TaskId id, const absl::Status& why) {
  // The others may keep waiting for it to join (again); all other barriers need it now.
  const absl::Status cancelled = absl::CancelledError(why.message());
  register_barrier_.Withdraw(id, cancelled);
  if (IsRecoverable(id)) {
    barriers_.WithdrawArrivalsOf(id, cancelled);
  } else {
    barriers_.FailThoseOf(id, why, RegisterBarrier::Id());
  }
}

void JobFailure::Propagate(const absl::Status& error, absl::Span<const TaskId> sources) {
  const bool all_recoverable =
      std::all_of(sources.begin(), sources.end(), [this](TaskId id) { return IsRecoverable(id); });
  if (options_.recoverable || (!sources.empty() && all_recoverable)) return;
  if (!error_.ok()) return;  // The first error is the one that is propagated.
  error_ = error;
  FERRY_LOG_INFO(kCoord, "job failed: job={}: {}", job_.epoch, error);
  if (error_report_) {
    for (int i = 0; i < membership_.size(); ++i) {
      const std::string& address = membership_.task(TaskId(i)).facts.error_address;
      if (address.empty()) continue;
      completions_.Add([report = error_report_, address, error]() { report(address, error); });
    }
  }
  if (has_poller_) {
    const absl::Time now = clock_.Now();
    for (auto& [task, poll] : polls_) {
      membership_.SetHasLivePoll(task, false, now);
      completions_.Answer(std::move(poll.done), error);
    }
    polls_.clear();
  } else {
    // All clients learn of errors by heartbeats only: those must fail.
    FailAllTasks(CoordinationError(absl::InternalError(
        absl::StrCat("All tasks were set to error. Cause: ", error.message()))));
  }
  topology_.EndWaits(error);
}

WaitId JobFailure::Poll(TaskId id, bool is_watched, StatusCallback done) {
  has_poller_ = true;
  const Task& task = membership_.task(id);
  const std::string name = membership_.jobs().Name(id);
  const absl::Time now = clock_.Now();
  if (task.state == TaskState::kDisconnected && now >= task.grace_end) {
    return completions_.Answer(
        std::move(done),
        CoordinationError(absl::FailedPreconditionError(absl::StrCat(
            "Task ", name, " polls for errors but has not been registered or has disconnected"))));
  }
  if (task.state == TaskState::kError) {
    return completions_.Answer(
        std::move(done), CoordinationError(absl::FailedPreconditionError(absl::StrCat(
                             "Task ", name, " polls for errors but is already in error state: ",
                             task.status.message()))));
  }
  if (!error_.ok()) return completions_.Answer(std::move(done), error_);
  PendingPoll& poll = polls_[id];
  if (poll.done) {
    completions_.Answer(std::move(poll.done), CoordinationError(absl::CancelledError(absl::StrCat(
                                                  "a newer poll of ", name, " takes its place"))));
  }
  poll = PendingPoll{ids_.Next(WaitKind::kPoll), now, std::move(done)};
  membership_.NoteCall(id);
  membership_.SetHasLivePoll(id, is_watched, now);
  return poll.wait;
}

bool JobFailure::CancelPoll(WaitId wait, const absl::Status& why) {
  const auto poll = std::find_if(polls_.begin(), polls_.end(),
                                 [wait](const auto& entry) { return entry.second.wait == wait; });
  if (poll == polls_.end()) return false;
  membership_.SetHasLivePoll(poll->first, false, clock_.Now());
  completions_.Answer(std::move(poll->second.done), why);
  polls_.erase(poll);
  return true;
}

void JobFailure::EndPoll(TaskId task, const absl::Status& why) {
  const auto poll = polls_.find(task);
  if (poll == polls_.end()) return;
  completions_.Answer(std::move(poll->second.done), why);
  polls_.erase(poll);
}

void JobFailure::EndPolls(const absl::Status& why) {
  for (auto& [task, poll] : polls_) completions_.Answer(std::move(poll.done), why);
  polls_.clear();
}

void JobFailure::BeginNewJob() {
  error_ = absl::OkStatus();
  has_poller_ = false;
}

void JobFailure::ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const {
  for (const auto& [task, poll] : polls_) visit({task, "errors of the job", poll.since});
}

}  // namespace ferry::coord
