// SPDX-License-Identifier: Apache-2.0
// SessionCalls: a session's calls in progress, and the steps that run for them.
#ifndef FERRY_TENSORFLOW_MASTER_SESSION_CALLS_H_
#define FERRY_TENSORFLOW_MASTER_SESSION_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "base/cancellation_token.h"
#include "proto/tf_config.pb.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/running_step.h"
#include "tensorflow/master/session_steps.h"
#include "tensorflow/master/session_workers.h"
#include "tensorflow/master/step_cache.h"
#include "tensorflow/master/step_call.h"

namespace ferry::master {

// Every call that runs a step, or one piece of it, is in the table from Begin until it is answered,
// so that it can be cancelled: by its own limits, by the loss of a worker, or by the end of the
// session. Thread-safe. Calls are answered with no lock held.
class SessionCalls final {
 public:
  // All references outlive it.
  SessionCalls(const MasterContext& context, SessionWorkers& workers,
               const tensorflow::ConfigProto& config);

  SessionCalls(const SessionCalls&) = delete;
  SessionCalls& operator=(const SessionCalls&) = delete;

  //   Errors: INVALID_ARGUMENT and UNIMPLEMENTED for options that a call must not have.
  absl::Status CheckOptions(const tensorflow::RunOptions& options) const;
  int64_t NewStepId() const { return static_cast<int64_t>(context_.random() >> 7); }

  // Registers a call. It is cancelled at once after Close.
  //   options: for its timeout; if they have none, the session's.
  //   gone: cancelled when the client disconnects; null: it never does.
  std::shared_ptr<StepCall> Begin(const tensorflow::RunOptions& options,
                                  std::shared_ptr<CancellationToken> gone, RunningStep::Done done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Answers a call for which no step is run.
  void Fail(const std::shared_ptr<StepCall>& call, absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs a step for the call. After the step has ended and the call is answered, calls `after` with
  // the result and whether workers were called.
  using After = absl::AnyInvocable<void(const absl::Status&, bool has_run) &&>;
  void Run(std::shared_ptr<const RegisteredStep> registered, RunSpec spec,
           std::shared_ptr<StepCall> call, After after);
  // Runs a complete step, and cleans up after it at the workers. Fails the call if the step could
  // not be registered.
  //   use: held until then.
  void RunWhole(StepCache::Result registered, RunSpec spec, std::shared_ptr<StepCall> call,
                SessionUse use);

  // Cancels the calls that use the worker, which is lost.
  void FailWorker(int worker, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels all calls, and those that begin later.
  //   why: not OK.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Remove(const std::shared_ptr<StepCall>& call) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<StepCall>> All() const ABSL_LOCKS_EXCLUDED(mu_);

  const MasterContext& context_;
  SessionWorkers& workers_;
  const tensorflow::ConfigProto& config_;

  mutable absl::Mutex mu_;
  // OK until closed.
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<std::shared_ptr<StepCall>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_CALLS_H_
