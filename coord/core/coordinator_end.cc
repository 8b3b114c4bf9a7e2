// SPDX-License-Identifier: Apache-2.0
// The end of tasks and jobs: errors, leaving, shutdown, and the next job.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "coord/core/coordinator.h"
#include "coord/core/errors.h"

namespace ferry::coord {
namespace {

// How long late processes of a job that could not start fail with its error.
constexpr absl::Duration kLateArrivals = absl::Seconds(20);

}  // namespace

void Coordinator::SetTaskError(TaskId id, absl::Status error) {
  FERRY_LOG_INFO(kCoord, "task failed: task={}: {}", id.value(), error);
  membership_.SetError(id, error);
  // Its own poll is not answered; the client learns of the error by its heartbeat.
  LeaveBarriers(id, error);
}

void Coordinator::LeaveBarriers(TaskId id, const absl::Status& why) {
  // The others may keep waiting for it to join (again); all other barriers need it now.
  const absl::Status cancelled = absl::CancelledError(why.message());
  barriers_.WithdrawArrivalAt(std::string(RegisterBarrierId()), id, cancelled);
  StopJoining(id);
  if (IsRecoverable(id)) {
    barriers_.WithdrawArrivalsOf(id, cancelled);
  } else {
    barriers_.FailThoseOf(id, why, RegisterBarrierId());
  }
}

void Coordinator::SetAllTasksError(const absl::Status& error) {
  for (int i = 0; i < jobs_.size(); ++i) {
    if (membership_.task(TaskId(i)).state != TaskState::kError) SetTaskError(TaskId(i), error);
  }
}

void Coordinator::Propagate(const absl::Status& error, absl::Span<const TaskId> sources) {
  const bool all_recoverable =
      std::all_of(sources.begin(), sources.end(), [this](TaskId id) { return IsRecoverable(id); });
  if (options_.recoverable || (!sources.empty() && all_recoverable)) return;
  if (!job_error_.ok()) return;  // The first error is the one that is propagated.
  job_error_ = error;
  FERRY_LOG_INFO(kCoord, "job failed: job={}: {}", epoch_, error);
  if (error_report_) {
    for (int i = 0; i < jobs_.size(); ++i) {
      const std::string& address = membership_.task(TaskId(i)).facts.error_address;
      if (address.empty()) continue;
      completions_.Add([report = error_report_, address, error]() { report(address, error); });
    }
  }
  if (has_poller_) {
    const absl::Time now = Now();
    for (auto& [task, poll] : polls_) {
      membership_.SetHasLivePoll(task, false, now);
      Answer(std::move(poll.done), error);
    }
    polls_.clear();
  } else {
    // All clients learn of errors by heartbeats only: those must fail.
    SetAllTasksError(CoordinationError(absl::InternalError(
        absl::StrCat("All tasks were set to error. Cause: ", error.message()))));
  }
  topology_.EndWaits(error);
}

absl::Status Coordinator::ReportError(TaskId id, absl::Status error) {
  if (absl::Status status = CheckTask(id); !status.ok()) return status;
  if (membership_.task(id).state != TaskState::kConnected) {
    return CoordinationError(absl::FailedPreconditionError(
        absl::StrCat(jobs_.Name(id), " reports an error but is not connected")));
  }
  if (error.ok()) error = absl::UnknownError("an error without a code");
  // A poll that ends CANCELLED means no error: the other tasks would not learn of it.
  const absl::StatusCode code =
      absl::IsCancelled(error) ? absl::StatusCode::kAborted : error.code();
  error = CoordinationError(
      absl::Status(code, absl::StrCat(jobs_.Name(id), " reported: ", FirstOf(error.message()))),
      {.is_reported = true, .source = id});
  SetTaskError(id, error);
  Propagate(error, {id});
  Settle();
  return absl::OkStatus();
}

absl::Status Coordinator::Disconnect(TaskId id, const absl::Status& why) {
  if (membership_.task(id).state == TaskState::kDisconnected) {
    return CoordinationError(absl::FailedPreconditionError(
        absl::StrCat(jobs_.Name(id), " has already disconnected or was never registered")));
  }
  membership_.Disconnect(id, Now());
  FERRY_LOG_INFO(kCoord, "task left: task={}; connected {} of {}: {}", id.value(),
                 membership_.connected_count(), jobs_.size(), why);
  LeaveBarriers(id, why);
  if (const auto poll = polls_.find(id); poll != polls_.end()) {
    Answer(std::move(poll->second.done), CoordinationError(absl::CancelledError(why.message())));
    polls_.erase(poll);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::ResetTask(TaskId id) {
  if (absl::Status status = CheckTask(id); !status.ok()) return status;
  const absl::Status status = Disconnect(id, absl::CancelledError("the task was reset"));
  Settle();
  return status;
}

absl::Status Coordinator::LeaveTask(TaskId id, Incarnation incarnation) {
  const auto joining = joining_.find(id);
  if (joining == joining_.end() || joining->second.registration.incarnation != incarnation) {
    return ResetTask(id);
  }
  // The others keep waiting for it.
  barriers_.Cancel(joining->second.wait,
                   absl::CancelledError(absl::StrCat(jobs_.Name(id), " left while it was joining")),
                   /*withdraw=*/true);
  StopJoining(id);
  Settle();
  return absl::OkStatus();
}

WaitId Coordinator::ShutdownTask(TaskId id, StatusCallback done) {
  if (absl::Status status = CheckTask(id); !status.ok()) return Answer(std::move(done), status);
  const absl::Status left = absl::CancelledError("the task has shut down");
  const std::string barrier = ShutdownBarrierId();
  const bool waits = options_.shutdown_timeout > absl::ZeroDuration() && !IsRecoverable(id);
  if (!waits || (!barriers_.IsOpen(barrier) && barriers_.HasPassed(barrier))) {
    const absl::Status status = Disconnect(id, left);
    Settle();
    return Answer(std::move(done), status);
  }
  if (membership_.task(id).state == TaskState::kDisconnected) {
    return Answer(std::move(done), Disconnect(id, left));
  }
  is_shutting_down_ = true;
  FERRY_LOG_INFO(kCoord, "task waits for the others to shut down: task={}", id.value());
  const WaitId wait = barriers_.Arrive(
      {.id = barrier, .timeout = options_.shutdown_timeout, .caller = id, .one_shot = true}, Now(),
      [done = std::move(done)](const BarrierResult& result) mutable {
        if (result.status.ok() || absl::IsCancelled(result.status) ||
            absl::IsAborted(result.status)) {
          std::move(done)(result.status);
          return;
        }
        std::move(done)(
            WithMissingTasks(CoordinationError(absl::InternalError(absl::StrCat(
                                 "Shutdown barrier has failed. ", result.status.message()))),
                             GetMissingTasks(result.status)));
      });
  membership_.SetLeaving(id);
  Settle();
  return wait;
}

void Coordinator::SettleShutdownBarrier() {
  if (!is_shutting_down_ || barriers_.IsOpen(ShutdownBarrierId())) return;
  is_shutting_down_ = false;
  if (barriers_.HasPassed(ShutdownBarrierId())) {
    FERRY_LOG_INFO(kCoord, "all tasks shut down: job={}", epoch_);
    for (int i = 0; i < jobs_.size(); ++i) {
      Disconnect(TaskId(i), absl::CancelledError("the job has shut down")).IgnoreError();
    }
    return;
  }
  const absl::Status error = CoordinationError(absl::InternalError(
      "Shutdown barrier has failed: not every task shut down; see the first error"));
  Propagate(error, {});
  SetAllTasksError(error);
}

absl::Duration Coordinator::EndOfFailedJob() const {
  // A job that never started expects only latecomers.
  return joining_error_.ok() ? options_.heartbeat_timeout
                             : std::min(options_.heartbeat_timeout, kLateArrivals);
}

bool Coordinator::IsOver() const {
  if (membership_.connected_count() > 0) return false;
  if (membership_.error_count() == 0) return everyone_has_registered();
  // Repeated calls of a rejected process do not keep the old job alive.
  return Now() - membership_.LastHeardOfErrors() > EndOfFailedJob();
}

void Coordinator::BeginNewJobIfOver(const Registration& newcomer) {
  if (!options_.reuse || !options_.register_barrier || !joining_.empty()) return;
  // A repeated call of a process of the old job does not start a new one.
  if (membership_.task(newcomer.task).incarnation == newcomer.incarnation) return;
  if (former_incarnations_.EpochOf(newcomer.task, newcomer.incarnation) != 0) return;
  if (!IsOver()) return;
  BeginNewJob(absl::CancelledError("the job is over; a new one begins"));
}

void Coordinator::BeginNewJob(const absl::Status& why) {
  for (auto& [task, poll] : polls_) Answer(std::move(poll.done), CoordinationError(why));
  polls_.clear();
  joining_.clear();
  joining_deadlines_.clear();
  barriers_.Clear(why);
  alive_.Clear(why);
  topology_.Clear(why);
  store_.Clear(CoordinationError(why));
  for (int i = 0; i < jobs_.size(); ++i) {
    former_incarnations_.Add(TaskId(i), membership_.task(TaskId(i)).incarnation, epoch_);
  }
  membership_.Reset();
  device_infos_ = std::make_shared<std::vector<std::string>>(jobs_.size());
  job_error_ = absl::OkStatus();
  joining_error_ = absl::OkStatus();
  if (refusal_.ok()) {
    told_tasks_.clear();
    told_others_ = joining_failures_.size();
  }
  has_poller_ = false;
  is_shutting_down_ = false;
  ++epoch_;
  FERRY_LOG_INFO(kCoord, "next job: job={}: {}", epoch_, why);
  // A new value per job, so that late calls of the old one are detected.
  incarnation_ = Incarnation(incarnation_.value() * 6364136223846793005u + 1442695040888963407u);
  Settle();
}

absl::Status Coordinator::EndJob(absl::string_view why, bool force) {
  if (absl::Status status = CheckRunning(); !status.ok()) return status;
  const bool has_failed = !job_error_.ok() || membership_.error_count() > 0;
  const int connected = membership_.connected_count();
  if (!has_failed && connected > 0 && !force) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job is healthy: ", connected, " of ", jobs_.size(),
                     " tasks are connected and none has failed; --force ends it anyway"));
  }
  const absl::Status ended =
      CoordinationError(absl::AbortedError(absl::StrCat("the job was ended: ", FirstOf(why))));
  // Notifies clients with a listening address; polls and all other calls end below.
  if (connected > 0) Propagate(ended, {});
  AnswerJoiningFailures(ended);
  BeginNewJob(ended);
  return absl::OkStatus();
}

}  // namespace ferry::coord
