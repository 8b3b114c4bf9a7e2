// SPDX-License-Identifier: Apache-2.0
// Tasks of a running job: joining, heartbeats and device infos. Their end is in coordinator_end.cc.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/text.h"
#include "coord/core/coordinator.h"
#include "coord/core/errors.h"

namespace ferry::coord {
namespace {

// One is enough to fail a job; the others only wait for their answer.
constexpr size_t kMaxJoiningFailures = 4096;

}  // namespace

absl::string_view Coordinator::RegisterBarrierId() {
  return "[Init]Wait_for_all_tasks_to_register";
}

bool Coordinator::IsOwnBarrier(absl::string_view id) const {
  return id == RegisterBarrierId() || id == ShutdownBarrierId() ||
         absl::StartsWith(id, "WaitForAllTasks::");
}

std::string Coordinator::ShutdownBarrierId() const {
  return absl::StrCat("Shutdown::", incarnation_.value());
}

bool Coordinator::IsRecoverable(TaskId task) const {
  return options_.recoverable || membership_.task(task).recoverable;
}

WaitId Coordinator::RegisterTask(Registration registration, StatusCallback done) {
  const TaskId id = registration.task;
  if (absl::Status status = CheckTask(id); !status.ok()) return Answer(std::move(done), status);
  if (absl::Status status = CheckIncarnation(id, registration.incarnation); !status.ok()) {
    return Answer(std::move(done), std::move(status));
  }
  BeginNewJobIfOver(registration);
  const Task& task = membership_.task(id);
  if (task.state == TaskState::kConnected) {
    if (task.incarnation == registration.incarnation) {
      membership_.Touch(id, Now());
      return Answer(std::move(done), absl::OkStatus());
    }
    if (IsRecoverable(id)) {
      Connect(registration);
      Settle();
      return Answer(std::move(done), absl::OkStatus());
    }
    const absl::Status aborted = CoordinationError(
        absl::AbortedError(
            absl::StrCat(jobs_.Name(id), " registers with incarnation ",
                         registration.incarnation.value(), " but is connected with incarnation ",
                         task.incarnation.value(), "; it has most likely restarted")),
        {.is_reported = false, .source = id});
    SetTaskError(id, aborted);
    Propagate(aborted, {id});
    Settle();
    return Answer(std::move(done), aborted);
  }
  // The job never started: a late process fails for the same reason as the others.
  if (task.state == TaskState::kError && !joining_error_.ok()) {
    told_tasks_.insert(id);
    return Answer(std::move(done), LateJoiningError());
  }
  if (task.state == TaskState::kError && !(IsRecoverable(id) && absl::IsUnavailable(task.status))) {
    const absl::Status aborted = CoordinationError(
        absl::AbortedError(absl::StrCat(
            jobs_.Name(id), " registers while already in error: ", task.status.message(),
            "; ResetTask clears it, and so does a new job, which begins when the others have left "
            "this one and nothing was heard of those in error for ",
            ShortDuration(EndOfFailedJob()))),
        {.is_reported = false, .source = id});
    Propagate(aborted, {id});
    Settle();
    return Answer(std::move(done), aborted);
  }
  if (!options_.register_barrier && !registration.waits_for_all) {
    SupersedeJoining(id);
    Connect(registration);
    ArriveWithoutWaiting(id);
    Settle();
    return Answer(std::move(done), absl::OkStatus());
  }
  return JoinRegisterBarrier(std::move(registration), std::move(done));
}

WaitId Coordinator::JoinRegisterBarrier(Registration registration, StatusCallback done) {
  const TaskId id = registration.task;
  const absl::Time now = Now();
  membership_.NoteSignOfLife(now);
  FERRY_LOG_DEBUG(kCoord, "task waits for the others: task={} incarnation={}", id.value(),
                  registration.incarnation.value());
  SupersedeJoining(id);
  const WaitId wait = barriers_.Arrive(
      RegisterArrival(id), now, [done = std::move(done)](const BarrierResult& result) mutable {
        std::move(done)(result.status);
      });
  const absl::Time deadline = now + registration.own_timeout;
  if (deadline != absl::InfiniteFuture()) joining_deadlines_.emplace(deadline, id);
  joining_[id] = Joining{std::move(registration), wait, now, deadline};
  const bool is_over = wait != kNoWait && (!joining_failures_.empty() || !refusal_.ok());
  if (is_over) FailPendingRegistrations();
  Settle();
  return is_over ? kNoWait : wait;
}

WaitId Coordinator::FailJoining(const absl::Status& why, absl::Duration timeout,
                                StatusCallback done) {
  if (absl::Status status = CheckRunning(); !status.ok()) {
    return Answer(std::move(done), std::move(status));
  }
  const bool is_whole = everyone_has_registered() && membership_.connected_count() > 0;
  if (joining_.empty() && is_whole) {
    return Answer(std::move(done),
                  CoordinationError(absl::FailedPreconditionError(absl::StrCat(
                      "every task has registered already, and the job goes on without this "
                      "process: ",
                      FirstOf(why.message())))));
  }
  if (joining_failures_.size() >= kMaxJoiningFailures) {
    return Answer(std::move(done),
                  CoordinationError(absl::ResourceExhaustedError(absl::StrCat(
                      kMaxJoiningFailures,
                      " processes that cannot join are waiting already, which is the limit"))));
  }
  FERRY_LOG_INFO(kCoord, "a process cannot join: {}", why);
  const absl::Time now = Now();
  const WaitId wait = ids_.Next(WaitKind::kFailJoining);
  const absl::Status told =
      CoordinationError(absl::Status(why.code(), FirstOf(why.message())), {.is_reported = true});
  joining_failures_.emplace(wait, JoiningFailure{told, now, now + timeout, std::move(done)});
  ++told_others_;
  // Tasks have already failed because of another process, and late ones will.
  const bool have_heard = !refusal_.ok() || (!joining_error_.ok() && !IsOver());
  const bool is_answered = !joining_.empty() || have_heard;
  if (!joining_.empty()) {
    FailPendingRegistrations();
  } else if (have_heard) {
    AnswerJoiningFailures(absl::OkStatus());
  }
  Settle();
  return is_answered ? kNoWait : wait;
}

void Coordinator::RefuseJoining(const absl::Status& why) {
  if (is_stopped_) return;
  refusal_ =
      CoordinationError(absl::Status(why.code(), FirstOf(why.message())), {.is_reported = true});
  if (!joining_.empty()) FailPendingRegistrations();
  AnswerJoiningFailures(absl::OkStatus());
  Settle();
}

WaitId Coordinator::WatchJoining(TaskId caller, StatusCallback done) {
  absl::Status failure = is_stopped_ ? CheckRunning() : PresentJoiningFailure();
  if (!failure.ok()) {
    ++told_others_;
    return Answer(std::move(done), std::move(failure));
  }
  if (joining_watches_.size() >= options_.max_pending_gets) {
    return Answer(std::move(done), CoordinationError(absl::ResourceExhaustedError(absl::StrCat(
                                       options_.max_pending_gets,
                                       " calls wait for the joining to fail, which is the limit "
                                       "(--max-pending-gets)"))));
  }
  const WaitId wait = ids_.Next(WaitKind::kWatchJoining);
  joining_watches_.emplace(wait, JoiningWatch{caller, Now(), std::move(done)});
  return wait;
}

absl::Status Coordinator::PresentJoiningFailure() const {
  if (!refusal_.ok()) return refusal_;
  if (!joining_error_.ok() && !IsOver()) return LateJoiningError();
  // The remains of a started job do not affect the next one: the process that cannot join may be
  // one of the old job's own.
  if (joining_failures_.empty() || (everyone_has_registered() && !IsOver())) {
    return absl::OkStatus();
  }
  return joining_failures_.begin()->second.why;
}

absl::Status Coordinator::LateJoiningError() const {
  // No job follows.
  if (!refusal_.ok()) return joining_error_;
  return CoordinationError(
      absl::Status(joining_error_.code(),
                   absl::StrCat(joining_error_.message(),
                                "; the next job begins when nothing was heard of this one for ",
                                ShortDuration(EndOfFailedJob()), ", or after `ferry reset`")),
      {.is_reported = true});
}

void Coordinator::TellJoiningWatches(const absl::Status& error) {
  told_others_ += joining_watches_.size();
  for (auto& [wait, watch] : std::exchange(joining_watches_, {})) {
    Answer(std::move(watch.done), error);
  }
}

void Coordinator::AnswerJoiningFailures(const absl::Status& status) {
  for (auto& [wait, failure] : std::exchange(joining_failures_, {})) {
    Answer(std::move(failure.done), status);
  }
}

void Coordinator::FailPendingRegistrations() {
  const absl::Status error = refusal_.ok() ? joining_failures_.begin()->second.why : refusal_;
  for (const auto& [id, joining] : joining_) told_tasks_.insert(id);
  TellJoiningWatches(error);
  if (options_.register_barrier) {
    joining_error_ = error;
    barriers_.Fail(RegisterBarrierId(), error);
  } else {
    // Tasks that do not wait for all may be running already.
    for (const auto& [id, joining] : std::exchange(joining_, {})) {
      barriers_.Cancel(joining.wait, error, /*withdraw=*/true);
    }
    joining_deadlines_.clear();
  }
  AnswerJoiningFailures(absl::OkStatus());
}

void Coordinator::ExpireJoiningFailures(absl::Time now) {
  for (auto it = joining_failures_.begin(); it != joining_failures_.end();) {
    JoiningFailure& failure = it->second;
    if (failure.deadline > now) {
      ++it;
      continue;
    }
    Answer(std::move(failure.done),
           CoordinationError(absl::DeadlineExceededError(
               absl::StrCat("waited ", ShortDuration(now - failure.since),
                            " for a task that joins, to tell it: ", failure.why.message()))));
    it = joining_failures_.erase(it);
  }
}

BarrierArrival Coordinator::RegisterArrival(TaskId id) const {
  return {
      .id = std::string(RegisterBarrierId()),
      .timeout = options_.register_barrier ? options_.register_timeout : absl::InfiniteDuration(),
      .caller = id,
      .one_shot = true};
}

void Coordinator::ArriveWithoutWaiting(TaskId id) {
  if (barriers_.IsOver(RegisterBarrierId())) return;
  const WaitId wait = barriers_.Arrive(RegisterArrival(id), Now(), [](const BarrierResult&) {});
  if (wait != kNoWait) barriers_.Cancel(wait, absl::OkStatus(), /*withdraw=*/false);
}

void Coordinator::SupersedeJoining(TaskId id) {
  const auto earlier = joining_.find(id);
  if (earlier == joining_.end()) return;
  // ABORTED would make that client retry and evict its successor.
  barriers_.Cancel(earlier->second.wait,
                   absl::AlreadyExistsError(
                       absl::StrCat("this registration of ", jobs_.Name(id),
                                    " was superseded by a request from a newer incarnation")),
                   /*withdraw=*/false);
  StopJoining(id);
}

void Coordinator::StopJoining(TaskId id) {
  const auto joining = joining_.find(id);
  if (joining == joining_.end()) return;
  joining_deadlines_.erase({joining->second.deadline, id});
  joining_.erase(joining);
}

void Coordinator::SettleRegisterBarrier() {
  if (joining_.empty() || !barriers_.IsOver(RegisterBarrierId())) return;
  const bool passed = barriers_.HasPassed(RegisterBarrierId());
  const auto joining = std::exchange(joining_, {});
  joining_deadlines_.clear();
  if (passed) {
    for (const auto& [id, entry] : joining) Connect(entry.registration);
    return;
  }
  SetAllTasksError(joining_error_.ok()
                       ? CoordinationError(absl::InternalError(
                             "Cluster registration failed: not every task registered in time"))
                       : joining_error_);
}

void Coordinator::Connect(const Registration& registration) {
  const Task& task = membership_.task(registration.task);
  // A new incarnation may have other devices.
  if (task.incarnation != registration.incarnation) topology_.Forget(registration.task);
  const bool is_another_life =
      task.last_heartbeat != absl::InfinitePast() && task.incarnation != registration.incarnation;
  if (is_another_life) {
    former_incarnations_.Add(registration.task, task.incarnation, epoch_);
    // The previous incarnation's barrier calls, including late ones, do not count for this one.
    barriers_.WithdrawArrivalsOf(
        registration.task,
        absl::CancelledError(absl::StrCat(jobs_.Name(registration.task),
                                          " has restarted; its earlier call is void")));
  }
  membership_.SetFacts(registration.task, registration.facts, registration.recoverable);
  const absl::Time now = Now();
  membership_.Connect(registration.task, registration.incarnation,
                      HeartbeatInterval(registration.beats_per_timeout, now), now);
  FERRY_LOG_INFO(kCoord, "task connected: task={} incarnation={}{}; connected {} of {}",
                 registration.task.value(), registration.incarnation.value(),
                 is_another_life ? ", after a restart" : "", membership_.connected_count(),
                 jobs_.size());
}

void Coordinator::ExpireJoining(absl::Time now) {
  if (joining_deadlines_.empty() || joining_deadlines_.begin()->first > now) return;
  std::vector<TaskId> missing;
  for (int i = 0; i < jobs_.size(); ++i) {
    if (!joining_.contains(TaskId(i))) missing.push_back(TaskId(i));
  }
  const std::string ranges = jobs_.Ranges(missing);
  while (!joining_deadlines_.empty() && joining_deadlines_.begin()->first <= now) {
    const TaskId id = joining_deadlines_.begin()->second;
    const Joining& joining = joining_.find(id)->second;
    const absl::Status late =
        WithMissingTasks(absl::DeadlineExceededError(
                             absl::StrCat("waited ", ShortDuration(now - joining.since),
                                          " for all tasks to connect; missing tasks: ", ranges)),
                         ranges);
    barriers_.Cancel(joining.wait, late, /*withdraw=*/true);
    StopJoining(id);
  }
}

absl::Status Coordinator::Heartbeat(TaskId id, Incarnation incarnation,
                                    std::optional<uint64_t> progress) {
  if (absl::Status status = CheckTask(id); !status.ok()) return status;
  if (absl::Status status = CheckIncarnation(id, incarnation); !status.ok()) return status;
  const Task& task = membership_.task(id);
  const absl::Time now = Now();
  if (task.state == TaskState::kError) {
    const absl::Duration gap = now - task.last_heard;
    membership_.Touch(id, now);
    // It was considered dead, but its heartbeats may only be infrequent.
    const bool is_too_seldom = absl::IsUnavailable(task.status) &&
                               task.incarnation == incarnation &&
                               task.heartbeat_interval.TimeoutFor(gap) > options_.heartbeat_timeout;
    return CoordinationError(absl::AbortedError(
        absl::StrCat("Heartbeat from already-in-error task ", jobs_.Name(id), ": ",
                     task.status.message(), is_too_seldom ? TooSeldomText(task, gap) : "")));
  }
  if (task.state == TaskState::kDisconnected && now >= task.grace_end) {
    return CoordinationError(absl::InvalidArgumentError(
        absl::StrCat(jobs_.Name(id),
                     " must be registered before it sends heartbeats; the "
                     "coordinator may have restarted")));
  }
  if (incarnation != task.incarnation) {
    if (IsRecoverable(id)) return absl::OkStatus();
    const absl::Status aborted = CoordinationError(
        absl::AbortedError(absl::StrCat(
            "heartbeat of ", jobs_.Name(id), " with incarnation ", incarnation.value(),
            ", expected ", task.incarnation.value(), "; it has most likely restarted")),
        {.is_reported = false, .source = id});
    if (task.state == TaskState::kConnected) {
      SetTaskError(id, aborted);
      Propagate(aborted, {id});
      Settle();
    }
    return aborted;
  }
  FERRY_LOG_TRACE(kCoord, "heartbeat received: task={}", id.value());
  membership_.Beat(id, now);
  if (progress.has_value()) membership_.SetProgress(id, *progress);
  return absl::OkStatus();
}

void Coordinator::NoteAlive(TaskId id, Incarnation incarnation) {
  if (is_stopped_ || !jobs_.Contains(id)) return;
  const Task& task = membership_.task(id);
  if (task.state == TaskState::kConnected && task.incarnation == incarnation) {
    membership_.Touch(id, Now());
  }
}

void Coordinator::NoteConnectionEnd(TaskId id) {
  if (is_stopped_ || !jobs_.Contains(id)) return;
  FERRY_LOG_INFO(kCoord, "connection of a task ended: task={}", id.value());
  membership_.NoteConnectionEnd(id, Now());
}

absl::Status Coordinator::CheckIncarnation(TaskId id, Incarnation life) const {
  const int64_t epoch = former_incarnations_.EpochOf(id, life);
  if (epoch == 0 || epoch == epoch_) return absl::OkStatus();
  return CoordinationError(absl::AbortedError(
      absl::StrCat(jobs_.Name(id), " with incarnation ", life.value(), " was part of job ", epoch,
                   " of this coordinator, which has ended; this is job ", epoch_,
                   ", which continues without that process; the process should exit")));
}

void Coordinator::ExtendHeartbeatDeadlines(absl::Duration held_up) {
  membership_.ExtendHeartbeatDeadlines(held_up, Now());
}

std::string Coordinator::PaceText(const Task& task) const {
  if (!task.heartbeat_interval.is_learned()) return "";
  const absl::Duration timeout = task.heartbeat_interval.timeout();
  if (timeout > options_.heartbeat_timeout)
    return TooSeldomText(task, task.heartbeat_interval.interval());
  return absl::StrCat("; it beat every ", ShortDuration(task.heartbeat_interval.interval()),
                      ", which implies that its client's heartbeat timeout is ",
                      ShortDuration(timeout));
}

std::string Coordinator::TooSeldomText(const Task& task, absl::Duration interval) const {
  const absl::Duration timeout = task.heartbeat_interval.TimeoutFor(interval);
  // The observed gap exceeds the client's interval by the duration of a call.
  const absl::Duration needed = absl::Ceil(timeout - absl::Milliseconds(500), absl::Seconds(1));
  return absl::StrCat("; it beats every ", ShortDuration(interval),
                      ", but this coordinator's heartbeat timeout is ",
                      ShortDuration(options_.heartbeat_timeout),
                      ": start it with --heartbeat-timeout=", absl::FormatDuration(needed));
}

std::string Coordinator::WhyDead(TaskId id, absl::Time now) const {
  const Task& task = membership_.task(id);
  const absl::Duration disconnected = now - task.connection_ended;
  if (!task.is_leaving && disconnected >= membership_.ReconnectGrace(task)) {
    return absl::StrCat(jobs_.Name(id), " heartbeat timeout: its connection ended ",
                        ShortDuration(disconnected),
                        " ago, and it has not called since; it has died, or cannot reach the "
                        "coordinator");
  }
  return absl::StrCat(jobs_.Name(id), " heartbeat timeout: nothing heard for ",
                      ShortDuration(now - task.last_heartbeat), PaceText(task),
                      "; it has died, hangs, or cannot reach the coordinator");
}

void Coordinator::ExpireSilentTasks(absl::Time now) {
  const std::vector<TaskId> silent = membership_.TakeSilent(now);
  if (silent.empty()) return;
  absl::Duration least_limit = absl::InfiniteDuration();
  bool has_hung = false;
  for (const TaskId id : silent) {
    const Task& task = membership_.task(id);
    absl::Duration limit = membership_.SilenceLimit(task);
    const absl::Duration grace = membership_.ReconnectGrace(task);
    const bool is_gone = !task.is_leaving && now - task.connection_ended >= grace;
    if (is_gone) limit = std::min(limit, grace);
    has_hung = has_hung || !is_gone;
    least_limit = std::min(least_limit, limit);
    SetTaskError(id, CoordinationError(absl::UnavailableError(WhyDead(id, now)),
                                       {.is_reported = false, .source = id}));
  }
  const bool is_one = silent.size() == 1;
  std::string text =
      absl::StrCat("heartbeat timeout: task", is_one ? " " : "s ", jobs_.Ranges(silent),
                   is_one ? " has" : " have", " been silent for over ", ShortDuration(least_limit));
  if (!has_hung) {
    absl::StrAppend(&text, is_one ? " after its connection ended; it has died, or cannot reach the "
                                    "coordinator"
                                  : " after their connections ended; they have died, or cannot "
                                    "reach the coordinator");
  } else {
    if (is_one) absl::StrAppend(&text, PaceText(membership_.task(silent[0])));
    absl::StrAppend(&text, is_one ? "; it has died, hangs, or cannot reach the coordinator"
                                  : "; they have died, hang, or cannot reach the coordinator");
  }
  Propagate(
      CoordinationError(absl::UnavailableError(text), {.is_reported = false, .source = silent[0]}),
      silent);
}

WaitId Coordinator::WaitForAllTasks(TaskId id, std::string device_info, DeviceInfosCallback done) {
  if (absl::Status status = CheckTask(id); !status.ok()) {
    completions_.Post(std::move(done), std::move(status));
    return kNoWait;
  }
  const std::string barrier = absl::StrCat("WaitForAllTasks::", incarnation_.value());
  std::string& kept = (*device_infos_)[id.value()];
  if (kept.empty() && !barriers_.HasPassed(barrier)) kept = std::move(device_info);
  return barriers_.Arrive(
      {.id = barrier, .timeout = absl::Hours(1), .caller = id, .one_shot = true}, Now(),
      [done = std::move(done),
       infos = DeviceInfos(device_infos_)](const BarrierResult& result) mutable {
        if (result.status.ok()) {
          std::move(done)(std::move(infos));
        } else {
          std::move(done)(result.status);
        }
      });
}

}  // namespace ferry::coord
