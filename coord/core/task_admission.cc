// SPDX-License-Identifier: Apache-2.0
// The cases of a registration, and the connection of admitted tasks.
#include "coord/core/task_admission.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/text.h"
#include "coord/core/errors.h"

namespace ferry::coord {

std::optional<absl::Status> TaskAdmission::Admit(const Registration& registration) {
  const TaskId id = registration.task;
  const Task& task = parts_.membership.task(id);
  const std::string name = parts_.membership.jobs().Name(id);
  if (task.state == TaskState::kConnected) {
    if (task.incarnation == registration.incarnation) {
      parts_.membership.Touch(id, clock_.Now());
      return absl::OkStatus();
    }
    if (parts_.failure.IsRecoverable(id)) {
      Connect(registration);
      return absl::OkStatus();
    }
    const absl::Status aborted = CoordinationError(
        absl::AbortedError(
            absl::StrCat(name, " registers with incarnation ", registration.incarnation.value(),
                         " but is connected with incarnation ", task.incarnation.value(),
                         "; it has most likely restarted")),
        {.is_reported = false, .source = id});
    parts_.failure.FailTask(id, aborted);
    parts_.failure.Propagate(aborted, {id});
    return aborted;
  }
  // The job never started: a late process fails for the same reason as the others.
  if (task.state == TaskState::kError && !parts_.join_failures.error().ok()) {
    return parts_.join_failures.TellLate(id);
  }
  if (task.state == TaskState::kError &&
      !(parts_.failure.IsRecoverable(id) && absl::IsUnavailable(task.status))) {
    const absl::Status aborted = CoordinationError(
        absl::AbortedError(absl::StrCat(
            name, " registers while already in error: ", task.status.message(),
            "; ResetTask clears it, and so does a new job, which begins when the others have left "
            "this one and nothing was heard of those in error for ",
            ShortDuration(parts_.join_failures.EndOfFailedJob()))),
        {.is_reported = false, .source = id});
    parts_.failure.Propagate(aborted, {id});
    return aborted;
  }
  if (options_.register_barrier || registration.waits_for_all) return std::nullopt;
  parts_.register_barrier.Supersede(id);
  Connect(registration);
  parts_.register_barrier.ArriveWithoutWaiting(id, clock_.Now());
  return absl::OkStatus();
}

WaitId TaskAdmission::Wait(Registration registration, StatusCallback done) {
  const absl::Time now = clock_.Now();
  parts_.membership.NoteActivity(now);
  FERRY_LOG_DEBUG(kCoord, "task waits for the others: task={} incarnation={}",
                  registration.task.value(), registration.incarnation.value());
  const WaitId wait = parts_.register_barrier.Wait(std::move(registration), now, std::move(done));
  const bool is_over = wait != kNoWait && parts_.join_failures.FailWaitingTasks();
  return is_over ? kNoWait : wait;
}

void TaskAdmission::Settle() {
  if (!parts_.register_barrier.IsOver()) return;
  const std::vector<Registration> registrations = parts_.register_barrier.Take();
  if (parts_.register_barrier.HasPassed()) {
    for (const Registration& registration : registrations) Connect(registration);
    return;
  }
  const absl::Status& error = parts_.join_failures.error();
  parts_.failure.FailAllTasks(
      error.ok() ? CoordinationError(absl::InternalError(
                       "Cluster registration failed: not every task registered in time"))
                 : error);
}

void TaskAdmission::Connect(const Registration& registration) {
  const Task& task = parts_.membership.task(registration.task);
  // A new incarnation may have other devices.
  if (task.incarnation != registration.incarnation) parts_.topology.Forget(registration.task);
  const bool is_another_life =
      task.last_heartbeat != absl::InfinitePast() && task.incarnation != registration.incarnation;
  if (is_another_life) {
    parts_.former_incarnations.Add(registration.task, task.incarnation, job_.epoch);
    // The previous incarnation's barrier calls, including late ones, do not count for this one.
    parts_.barriers.WithdrawArrivalsOf(
        registration.task,
        absl::CancelledError(absl::StrCat(parts_.membership.jobs().Name(registration.task),
                                          " has restarted; its earlier call is void")));
  }
  parts_.membership.SetFacts(registration.task, registration.facts, registration.recoverable);
  const absl::Time now = clock_.Now();
  parts_.membership.Connect(registration.task, registration.incarnation,
                            HeartbeatInterval(registration.beats_per_timeout, now), now);
  FERRY_LOG_INFO(kCoord, "task connected: task={} incarnation={}{}; connected {} of {}",
                 registration.task.value(), registration.incarnation.value(),
                 is_another_life ? ", after a restart" : "", parts_.membership.connected_count(),
                 parts_.membership.size());
}

}  // namespace ferry::coord
