// SPDX-License-Identifier: Apache-2.0
// Leaving, the shutdown barrier, and its outcome.
#include "coord/core/job_shutdown.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "coord/core/errors.h"

namespace ferry::coord {

std::string JobShutdown::BarrierId() const {
  return absl::StrCat("Shutdown::", job_.incarnation.value());
}

bool JobShutdown::MustWait(TaskId id) const {
  if (options_.shutdown_timeout <= absl::ZeroDuration() || failure_.IsRecoverable(id)) return false;
  if (membership_.task(id).state == TaskState::kDisconnected) return false;
  const std::string barrier = BarrierId();
  return barriers_.IsOpen(barrier) || !barriers_.HasPassed(barrier);
}

WaitId JobShutdown::Wait(TaskId id, StatusCallback done) {
  is_shutting_down_ = true;
  FERRY_LOG_INFO(kCoord, "task waits for the others to shut down: task={}", id.value());
  const WaitId wait = barriers_.Arrive(
      {.id = BarrierId(), .timeout = options_.shutdown_timeout, .caller = id, .one_shot = true},
      clock_.Now(), [done = std::move(done)](const BarrierResult& result) mutable {
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
  return wait;
}

absl::Status JobShutdown::Disconnect(TaskId id, const absl::Status& why) {
  if (membership_.task(id).state == TaskState::kDisconnected) {
    return CoordinationError(absl::FailedPreconditionError(absl::StrCat(
        membership_.jobs().Name(id), " has already disconnected or was never registered")));
  }
  membership_.Disconnect(id, clock_.Now());
  FERRY_LOG_INFO(kCoord, "task left: task={}; connected {} of {}: {}", id.value(),
                 membership_.connected_count(), membership_.size(), why);
  failure_.LeaveBarriers(id, why);
  failure_.EndPoll(id, CoordinationError(absl::CancelledError(why.message())));
  return absl::OkStatus();
}

void JobShutdown::Settle() {
  if (!is_shutting_down_ || barriers_.IsOpen(BarrierId())) return;
  is_shutting_down_ = false;
  if (barriers_.HasPassed(BarrierId())) {
    FERRY_LOG_INFO(kCoord, "all tasks shut down: job={}", job_.epoch);
    for (int i = 0; i < membership_.size(); ++i) {
      Disconnect(TaskId(i), absl::CancelledError("the job has shut down")).IgnoreError();
    }
    return;
  }
  const absl::Status error = CoordinationError(absl::InternalError(
      "Shutdown barrier has failed: not every task shut down; see the first error"));
  failure_.Propagate(error, {});
  failure_.FailAllTasks(error);
}

}  // namespace ferry::coord
