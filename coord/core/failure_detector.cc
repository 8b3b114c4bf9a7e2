// SPDX-License-Identifier: Apache-2.0
// Heartbeats, silent tasks, and the texts of their errors.
#include "coord/core/failure_detector.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/text.h"
#include "coord/core/errors.h"

namespace ferry::coord {

absl::Status FailureDetector::Heartbeat(TaskId id, Incarnation incarnation,
                                        std::optional<uint64_t> progress) {
  const Task& task = membership_.task(id);
  const absl::Time now = clock_.Now();
  if (task.state == TaskState::kError) {
    const absl::Duration gap = now - task.last_heard;
    membership_.Touch(id, now);
    // It was considered dead, but its heartbeats may only be infrequent.
    const bool is_too_seldom = absl::IsUnavailable(task.status) &&
                               task.incarnation == incarnation &&
                               task.heartbeat_interval.TimeoutFor(gap) > options_.heartbeat_timeout;
    return CoordinationError(absl::AbortedError(absl::StrCat(
        "Heartbeat from already-in-error task ", membership_.jobs().Name(id), ": ",
        task.status.message(), is_too_seldom ? HeartbeatsTooRareText(task, gap) : "")));
  }
  if (task.state == TaskState::kDisconnected && now >= task.grace_end) {
    return CoordinationError(absl::InvalidArgumentError(
        absl::StrCat(membership_.jobs().Name(id),
                     " must be registered before it sends heartbeats; the "
                     "coordinator may have restarted")));
  }
  if (incarnation != task.incarnation) {
    if (failure_.IsRecoverable(id)) return absl::OkStatus();
    const absl::Status aborted = CoordinationError(
        absl::AbortedError(absl::StrCat(
            "heartbeat of ", membership_.jobs().Name(id), " with incarnation ", incarnation.value(),
            ", expected ", task.incarnation.value(), "; it has most likely restarted")),
        {.is_reported = false, .source = id});
    if (task.state == TaskState::kConnected) {
      failure_.FailTask(id, aborted);
      failure_.Propagate(aborted, {id});
    }
    return aborted;
  }
  FERRY_LOG_TRACE(kCoord, "heartbeat received: task={}", id.value());
  membership_.Beat(id, now);
  if (progress.has_value()) membership_.SetProgress(id, *progress);
  return absl::OkStatus();
}

std::string FailureDetector::HeartbeatRateText(const Task& task) const {
  if (!task.heartbeat_interval.is_learned()) return "";
  const absl::Duration timeout = task.heartbeat_interval.timeout();
  if (timeout > options_.heartbeat_timeout)
    return HeartbeatsTooRareText(task, task.heartbeat_interval.interval());
  return absl::StrCat("; it beat every ", ShortDuration(task.heartbeat_interval.interval()),
                      ", which implies that its client's heartbeat timeout is ",
                      ShortDuration(timeout));
}

std::string FailureDetector::HeartbeatsTooRareText(const Task& task,
                                                   absl::Duration interval) const {
  const absl::Duration timeout = task.heartbeat_interval.TimeoutFor(interval);
  // The observed gap exceeds the client's interval by the duration of a call.
  const absl::Duration needed = absl::Ceil(timeout - absl::Milliseconds(500), absl::Seconds(1));
  return absl::StrCat("; it beats every ", ShortDuration(interval),
                      ", but this coordinator's heartbeat timeout is ",
                      ShortDuration(options_.heartbeat_timeout),
                      ": start it with --heartbeat-timeout=", absl::FormatDuration(needed));
}

std::string FailureDetector::DescribeDeath(TaskId id, absl::Time now) const {
  const Task& task = membership_.task(id);
  const absl::Duration disconnected = now - task.connection_ended;
  if (!task.is_leaving && disconnected >= membership_.ReconnectGrace(task)) {
    return absl::StrCat(membership_.jobs().Name(id), " heartbeat timeout: its connection ended ",
                        ShortDuration(disconnected),
                        " ago, and it has not called since; it has died, or cannot reach the "
                        "coordinator");
  }
  return absl::StrCat(membership_.jobs().Name(id), " heartbeat timeout: nothing heard for ",
                      ShortDuration(now - task.last_heartbeat), HeartbeatRateText(task),
                      "; it has died, hangs, or cannot reach the coordinator");
}

void FailureDetector::ExpireSilentTasks(absl::Time now) {
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
    failure_.FailTask(id, CoordinationError(absl::UnavailableError(DescribeDeath(id, now)),
                                            {.is_reported = false, .source = id}));
  }
  const bool is_one = silent.size() == 1;
  std::string text = absl::StrCat("heartbeat timeout: task", is_one ? " " : "s ",
                                  membership_.jobs().Ranges(silent), is_one ? " has" : " have",
                                  " been silent for over ", ShortDuration(least_limit));
  if (!has_hung) {
    absl::StrAppend(&text, is_one ? " after its connection ended; it has died, or cannot reach the "
                                    "coordinator"
                                  : " after their connections ended; they have died, or cannot "
                                    "reach the coordinator");
  } else {
    if (is_one) absl::StrAppend(&text, HeartbeatRateText(membership_.task(silent[0])));
    absl::StrAppend(&text, is_one ? "; it has died, hangs, or cannot reach the coordinator"
                                  : "; they have died, hang, or cannot reach the coordinator");
  }
  failure_.Propagate(
      CoordinationError(absl::UnavailableError(text), {.is_reported = false, .source = silent[0]}),
      silent);
}

}  // namespace ferry::coord
