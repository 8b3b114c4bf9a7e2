// SPDX-License-Identifier: Apache-2.0
// StepCall: a client's run request, from arrival to answer.
#ifndef FERRY_TENSORFLOW_MASTER_STEP_CALL_H_
#define FERRY_TENSORFLOW_MASTER_STEP_CALL_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "tensorflow/master/running_step.h"
#include "tensorflow/master/timers.h"

namespace ferry::master {

// The client's timeout and cancellation.
struct ClientLimits {
  absl::Duration timeout = absl::InfiniteDuration();
  // Cancelled when the client disconnects; null: it never does.
  std::shared_ptr<CancellationToken> gone;
};

// Thread-safe. While the step is being registered, cancelling answers the call at once; once a step
// runs, cancelling cancels the step, whose result is the answer.
class StepCall final : public std::enable_shared_from_this<StepCall> {
 public:
  // `done` is called exactly once, with no lock held.
  StepCall(Timers& timers, RunningStep::Done done) : timers_(timers), done_(std::move(done)) {}

  // Applies the limits from now on.
  void Watch(ClientLimits limits) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the step that runs for the call. Returns false if the call is already over.
  bool SetStep(std::shared_ptr<RunningStep> step) ABSL_LOCKS_EXCLUDED(mu_);
  void CallOff(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the call because the worker is lost.
  void FailWorker(int worker, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers the call. Idempotent.
  void Finish(absl::StatusOr<RunningStep::Result> result) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void TimeOut(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  Timers& timers_;
  absl::Mutex mu_;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  RunningStep::Done done_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<RunningStep> step_ ABSL_GUARDED_BY(mu_);
  Timers::Id timer_ ABSL_GUARDED_BY(mu_) = Timers::kNone;
  std::shared_ptr<CancellationToken> gone_ ABSL_GUARDED_BY(mu_);
  CancellationToken::CallbackId gone_token_ ABSL_GUARDED_BY(mu_) = CancellationToken::kNoCallback;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_CALL_H_
