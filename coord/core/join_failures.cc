// SPDX-License-Identifier: Apache-2.0
// Reports of processes that cannot join, watches of them, and the end of a failed start.
#include "coord/core/join_failures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/text.h"
#include "coord/core/errors.h"

namespace ferry::coord {
namespace {

// One is enough to fail a job; the others only wait for their answer.
constexpr size_t kMaxReports = 4096;
// How long late processes of a job that could not start fail with its error.
constexpr absl::Duration kLateArrivals = absl::Seconds(20);

}  // namespace

WaitId JoinFailures::Report(const absl::Status& why, absl::Duration timeout, StatusCallback done) {
  const bool is_whole = register_barrier_.HasPassed() && membership_.connected_count() > 0;
  if (register_barrier_.empty() && is_whole) {
    return completions_.Answer(
        std::move(done),
        CoordinationError(absl::FailedPreconditionError(absl::StrCat(
            "every task has registered already, and the job goes on without this process: ",
            FirstOf(why.message())))));
  }
  if (reports_.size() >= kMaxReports) {
    return completions_.Answer(
        std::move(done),
        CoordinationError(absl::ResourceExhaustedError(absl::StrCat(
            kMaxReports, " processes that cannot join are waiting already, which is the limit"))));
  }
  FERRY_LOG_INFO(kCoord, "a process cannot join: {}", why);
  const absl::Time now = clock_.Now();
  const WaitId wait = ids_.Next(WaitKind::kFailJoining);
  const absl::Status told =
      CoordinationError(absl::Status(why.code(), FirstOf(why.message())), {.is_reported = true});
  reports_.emplace(wait, Reported{told, now, now + timeout, std::move(done)});
  ++notified_others_;
  if (!register_barrier_.empty()) {
    Fail();
    return kNoWait;
  }
  // Tasks have already failed because of another process, and late ones will.
  if (!refusal_.ok() || (!error_.ok() && !IsJobOver())) {
    EndReports(absl::OkStatus());
    return kNoWait;
  }
  return wait;
}

void JoinFailures::Refuse(const absl::Status& why) {
  refusal_ =
      CoordinationError(absl::Status(why.code(), FirstOf(why.message())), {.is_reported = true});
  if (!register_barrier_.empty()) Fail();
  EndReports(absl::OkStatus());
}

WaitId JoinFailures::Watch(TaskId caller, StatusCallback done) {
  if (absl::Status failure = Present(); !failure.ok()) {
    ++notified_others_;
    return completions_.Answer(std::move(done), std::move(failure));
  }
  if (watches_.size() >= options_.max_pending_gets) {
    return completions_.Answer(
        std::move(done), CoordinationError(absl::ResourceExhaustedError(
                             absl::StrCat(options_.max_pending_gets,
                                          " calls wait for the joining to fail, which is the limit "
                                          "(--max-pending-gets)"))));
  }
  const WaitId wait = ids_.Next(WaitKind::kWatchJoining);
  watches_.emplace(wait, Watching{caller, clock_.Now(), std::move(done)});
  return wait;
}

bool JoinFailures::Cancel(WaitId wait, const absl::Status& why) {
  if (const auto report = reports_.find(wait); report != reports_.end()) {
    completions_.Answer(std::move(report->second.done), why);
    reports_.erase(report);
    return true;
  }
  if (const auto watch = watches_.find(wait); watch != watches_.end()) {
    completions_.Answer(std::move(watch->second.done), why);
    watches_.erase(watch);
    return true;
  }
  return false;
}

bool JoinFailures::FailWaitingTasks() {
  if (reports_.empty() && refusal_.ok()) return false;
  Fail();
  return true;
}

void JoinFailures::Fail() {
  const absl::Status error = refusal_.ok() ? reports_.begin()->second.why : refusal_;
  for (const TaskId task : register_barrier_.Tasks()) notified_tasks_.insert(task);
  TellWatches(error);
  if (options_.register_barrier) error_ = error;
  register_barrier_.Fail(error);
  EndReports(absl::OkStatus());
}

absl::Status JoinFailures::Present() const {
  if (!refusal_.ok()) return refusal_;
  if (!error_.ok() && !IsJobOver()) return LateError();
  // The remains of a started job do not affect the next one: the process that cannot join may be
  // one of the old job's own.
  if (reports_.empty() || (register_barrier_.HasPassed() && !IsJobOver())) return absl::OkStatus();
  return reports_.begin()->second.why;
}

absl::Status JoinFailures::LateError() const {
  // No job follows.
  if (!refusal_.ok()) return error_;
  return CoordinationError(
      absl::Status(error_.code(),
                   absl::StrCat(error_.message(),
                                "; the next job begins when nothing was heard of this one for ",
                                ShortDuration(EndOfFailedJob()), ", or after `ferry reset`")),
      {.is_reported = true});
}

absl::Status JoinFailures::TellLate(TaskId task) {
  notified_tasks_.insert(task);
  return LateError();
}

void JoinFailures::AnswerWatches() {
  if (watches_.empty()) return;
  if (const absl::Status failure = Present(); !failure.ok()) TellWatches(failure);
}

void JoinFailures::TellWatches(const absl::Status& error) {
  notified_others_ += watches_.size();
  for (auto& [wait, watch] : std::exchange(watches_, {})) {
    completions_.Answer(std::move(watch.done), error);
  }
}

void JoinFailures::EndReports(const absl::Status& status) {
  for (auto& [wait, report] : std::exchange(reports_, {})) {
    completions_.Answer(std::move(report.done), status);
  }
}

absl::Duration JoinFailures::EndOfFailedJob() const {
  // A job that never started expects only latecomers.
  return error_.ok() ? options_.heartbeat_timeout
                     : std::min(options_.heartbeat_timeout, kLateArrivals);
}

bool JoinFailures::IsJobOver() const {
  if (membership_.connected_count() > 0) return false;
  if (membership_.error_count() == 0) return register_barrier_.HasPassed();
  // Repeated calls of a rejected process do not keep the old job alive.
  return clock_.Now() - membership_.LastHeardOfErrors() > EndOfFailedJob();
}

void JoinFailures::BeginNewJob() {
  error_ = absl::OkStatus();
  if (!refusal_.ok()) return;
  notified_tasks_.clear();
  notified_others_ = reports_.size();
}

void JoinFailures::Stop(const absl::Status& why) {
  EndReports(why);
  for (auto& [wait, watch] : watches_) completions_.Answer(std::move(watch.done), why);
  watches_.clear();
  notified_tasks_.clear();
}

void JoinFailures::Expire(absl::Time now) {
  for (auto it = reports_.begin(); it != reports_.end();) {
    Reported& report = it->second;
    if (report.deadline > now) {
      ++it;
      continue;
    }
    completions_.Answer(std::move(report.done),
                        CoordinationError(absl::DeadlineExceededError(absl::StrCat(
                            "waited ", ShortDuration(now - report.since),
                            " for a task that joins, to tell it: ", report.why.message()))));
    it = reports_.erase(it);
  }
}

absl::Time JoinFailures::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  // Few: one for each rejected process.
  for (const auto& [wait, report] : reports_) next = std::min(next, report.deadline);
  return next;
}

void JoinFailures::ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const {
  for (const auto& [wait, report] : reports_) {
    visit({kNoTask, "a task that joins, to tell it of one that cannot", report.since});
  }
  for (const auto& [wait, watch] : watches_) {
    visit({watch.caller, "news of a task that cannot join", watch.since});
  }
}

void JoinFailures::AddTableSizes(TableSizes& sizes) const {
  sizes["joining.failures"] = reports_.size();
  sizes["joining.told"] = notified_tasks_.size();
  sizes["joining.watches"] = watches_.size();
}

}  // namespace ferry::coord
