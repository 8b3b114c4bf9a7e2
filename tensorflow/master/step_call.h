// SPDX-License-Identifier: Apache-2.0
// StepCall: a client's request for a run, from its arrival to its answer.
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

// How long a client waits, and how it gives up.
struct ClientLimits {
  absl::Duration timeout = absl::InfiniteDuration();
  // Cancelled when the client has gone; null: it stays.
  std::shared_ptr<CancellationToken> gone;
};

// Thread-safe. First nothing runs (the step is being registered) and calling it off answers at
// once; then a step runs, and calling it off calls off the step, whose end is the answer.
class StepCall final : public std::enable_shared_from_this<StepCall> {
 public:
  // `done` is called exactly once, with no lock held.
  StepCall(Timers& timers, RunningStep::Done done) : timers_(timers), done_(std::move(done)) {}

  // From now on it ends when the limits say so.
  void Watch(ClientLimits limits) ABSL_LOCKS_EXCLUDED(mu_);
  // The step that runs for it. False: it is over already.
  bool SetStep(std::shared_ptr<RunningStep> step) ABSL_LOCKS_EXCLUDED(mu_);
  void CallOff(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // A worker is lost.
  void FailWorker(int worker, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers. A second time does nothing.
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
