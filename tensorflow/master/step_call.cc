// SPDX-License-Identifier: Apache-2.0
// Resolves races between completion, timeout and cancellation.
#include "tensorflow/master/step_call.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/text.h"

namespace ferry::master {

void StepCall::Watch(ClientLimits limits) {
  // Weak: timers and token may outlive the call, and must not keep it alive.
  const std::weak_ptr<StepCall> weak = weak_from_this();
  if (limits.timeout < absl::InfiniteDuration()) {
    const Timers::Id timer = timers_.AddAfter(limits.timeout, [weak, timeout = limits.timeout] {
      if (const std::shared_ptr<StepCall> self = weak.lock()) self->TimeOut(timeout);
    });
    absl::MutexLock lock(&mu_);
    timer_ = timer;
  }
  if (limits.gone == nullptr) return;
  const CancellationToken::CallbackId token = limits.gone->Register([weak] {
    if (const std::shared_ptr<StepCall> self = weak.lock()) {
      self->CallOff(absl::CancelledError("Step was cancelled: its client has gone."));
    }
  });
  if (token == CancellationToken::kNoCallback) {
    return CallOff(absl::CancelledError("Step was cancelled"));
  }
  absl::MutexLock lock(&mu_);
  gone_ = std::move(limits.gone);
  gone_token_ = token;
}

void StepCall::TimeOut(absl::Duration timeout) {
  std::shared_ptr<RunningStep> step;
  {
    absl::MutexLock lock(&mu_);
    step = step_;
  }
  const std::string waiting_for =
      step == nullptr ? "its graphs to be registered at the workers"
                      : absl::StrCat(step->WaitingFor(), " (step ", step->step_id(), ")");
  CallOff(absl::DeadlineExceededError(
      absl::StrCat("The step timed out after ", ShortDuration(timeout), ": waited for ",
                   waiting_for, ". RunOptions.timeout_in_ms gives it longer.")));
}

bool StepCall::SetStep(std::shared_ptr<RunningStep> step) {
  absl::MutexLock lock(&mu_);
  if (is_over_) return false;
  step_ = std::move(step);
  return true;
}

void StepCall::CallOff(absl::Status why) {
  std::shared_ptr<RunningStep> step;
  {
    absl::MutexLock lock(&mu_);
    if (is_over_) return;
    step = step_;
  }
  if (step != nullptr) return step->Fail(std::move(why));
  Finish(std::move(why));
}

void StepCall::FailWorker(int worker, const absl::Status& why) {
  std::shared_ptr<RunningStep> step;
  {
    absl::MutexLock lock(&mu_);
    step = step_;
  }
  if (step != nullptr) step->FailWorker(worker, why);
}

void StepCall::Finish(absl::StatusOr<RunningStep::Result> result) {
  RunningStep::Done done;
  Timers::Id timer = Timers::kNone;
  std::shared_ptr<CancellationToken> gone;
  CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  std::shared_ptr<RunningStep> step;
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(is_over_, true)) return;
    done = std::move(done_);
    timer = std::exchange(timer_, Timers::kNone);
    gone = std::move(gone_);
    token = gone_token_;
    step = std::move(step_);
  }
  if (timer != Timers::kNone) timers_.Remove(timer);
  if (gone != nullptr) gone->Deregister(token);
  std::move(done)(std::move(result));
}

}  // namespace ferry::master
