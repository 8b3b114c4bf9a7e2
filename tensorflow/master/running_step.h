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

// What goes to the workers, but for what differs between them.
struct RunSpec {
  int64_t step_id = 0;
  // By key; they go to the client's worker.
  std::vector<tensorflow::NamedTensorProto> feeds;
  std::vector<std::string> fetch_keys;
  tensorflow::ExecutorOpts options;
  bool is_partial = false;
  bool is_last_partial_run = false;
};

// Thread-safe. The first error that does not follow from another one calls off the rest; so does
// one that does, if its cause is not told of within a second.
class RunningStep final : public std::enable_shared_from_this<RunningStep> {
 public:
  struct Result {
    std::shared_ptr<const RegisteredStep> registered;
    // One for each part.
    std::vector<tensorflow::RunGraphResponse> responses;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<Result>) &&>;

  // `timers` outlive it, and so does `log`, which is told of it in the end; null: nobody is.
  RunningStep(std::shared_ptr<const RegisteredStep> registered, int64_t step_id, Timers& timers,
              StepLog* log = nullptr)
      : timers_(timers),
        log_(log),
        registered_(std::move(registered)),
        step_id_(step_id),
        cancellation_(std::make_shared<CancellationToken>()) {}

  int64_t step_id() const { return step_id_; }
  const RegisteredStep& registered() const { return *registered_; }

  // Once. `done` is called when every worker has answered.
  //   next_request_id: a new one for each call.
  void Run(RunSpec spec, absl::AnyInvocable<int64_t()> next_request_id, Done done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Calls it off. What has gone wrong before stays the reason.
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // The worker is lost. Nothing happens if it has no part.
  void FailWorker(int worker, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Those that have not answered yet; for people.
  std::string WaitingFor() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void WhenAnswered(size_t part, absl::StatusOr<tensorflow::RunGraphResponse> response)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndOne() ABSL_LOCKS_EXCLUDED(mu_);
  // Something has gone wrong because of something else.
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
  // With a log: a call for each part.
  LoggedStep times_ ABSL_GUARDED_BY(mu_);
  Done done_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_RUNNING_STEP_H_
