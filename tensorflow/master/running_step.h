// SPDX-License-Identifier: Apache-2.0
// RunningStep: one run of a registered step at all its workers.
#ifndef FERRY_TENSORFLOW_MASTER_RUNNING_STEP_H_
#define FERRY_TENSORFLOW_MASTER_RUNNING_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "proto/tf_worker.pb.h"
#include "tensorflow/master/registered_step.h"
#include "tensorflow/master/step_errors.h"
#include "tensorflow/master/step_log.h"
#include "tensorflow/master/timers.h"

namespace ferry::master {

// The fields common to all workers' requests.
struct RunSpec {
  int64_t step_id = 0;
  // Named by key; sent to the client's worker.
  std::vector<tensorflow::NamedTensorProto> feeds;
  std::vector<std::string> fetch_keys;
  tensorflow::ExecutorOpts options;
  bool is_partial = false;
  bool is_last_partial_run = false;
};

// Thread-safe. The first root error cancels the rest of the step. A derived error does so too if no
// root cause is reported within a second.
class RunningStep final : public std::enable_shared_from_this<RunningStep> {
 public:
  struct Result {
    std::shared_ptr<const RegisteredStep> registered;
    // One per part.
    std::vector<tensorflow::RunGraphResponse> responses;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<Result>) &&>;

  // `timers` and `log` must outlive it. `log` gets the step's times at the end; may be null.
  RunningStep(std::shared_ptr<const RegisteredStep> registered, int64_t step_id, Timers& timers,
              StepLog* log = nullptr)
      : timers_(timers),
        log_(log),
        registered_(std::move(registered)),
        step_id_(step_id),
        cancellation_(std::make_shared<CancellationToken>()) {}

  int64_t step_id() const { return step_id_; }
  const RegisteredStep& registered() const { return *registered_; }

  // Call once. `done` is called when every worker has answered.
  //   next_request_id: returns a new id per call.
  void Run(RunSpec spec, absl::AnyInvocable<int64_t()> next_request_id, Done done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the step. An earlier error remains the reported one.
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels the step because the worker is lost, if it has a part.
  void FailWorker(int worker, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Names the workers that have not answered, for messages.
  std::string WaitingFor() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void WhenAnswered(size_t part, absl::StatusOr<tensorflow::RunGraphResponse> response)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndOne() ABSL_LOCKS_EXCLUDED(mu_);
  // Called after a derived error: waits for its root cause.
  void AwaitCause() ABSL_LOCKS_EXCLUDED(mu_);

  Timers& timers_;
  StepLog* const log_;
  const std::shared_ptr<const RegisteredStep> registered_;
  const int64_t step_id_;
  const std::shared_ptr<CancellationToken> cancellation_;
  mutable absl::Mutex mu_;
  StepErrors errors_ ABSL_GUARDED_BY(mu_);
  std::vector<tensorflow::RunGraphResponse> responses_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> has_answered_ ABSL_GUARDED_BY(mu_);
  Timers::Id cause_timer_ ABSL_GUARDED_BY(mu_) = Timers::kNone;
  size_t pending_ ABSL_GUARDED_BY(mu_) = 0;
  // One call per part; used only with a log.
  LoggedStep times_ ABSL_GUARDED_BY(mu_);
  Done done_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_RUNNING_STEP_H_
