// SPDX-License-Identifier: Apache-2.0
// PartialRuns: steps that clients feed and fetch in pieces.
#ifndef FERRY_TENSORFLOW_MASTER_PARTIAL_RUNS_H_
#define FERRY_TENSORFLOW_MASTER_PARTIAL_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "base/cancellation_token.h"
#include "base/table_sizes.h"
#include "proto/tf_master.pb.h"
#include "tensorflow/graph/partial_run.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/registered_step.h"
#include "tensorflow/master/session_calls.h"
#include "tensorflow/master/session_steps.h"
#include "tensorflow/master/session_workers.h"
#include "tensorflow/master/step_call.h"

namespace ferry::master {

// A partial run is one step of the workers, and each of its pieces one call. It ends with the piece
// that completes what was announced, or with the first one that fails, which cancels the others;
// the workers clean up once no piece is in progress. Thread-safe. Callbacks run exactly once, with
// no lock held, on whichever thread completes the call, possibly before the method returns. Belongs
// to one session, whose uses (see SessionUse) keep it alive.
class PartialRuns final {
 public:
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

  // All references outlive it.
  PartialRuns(const MasterContext& context, SessionWorkers& workers, SessionSteps& steps,
              SessionCalls& calls)
      : context_(context), workers_(workers), steps_(steps), calls_(calls) {}

  PartialRuns(const PartialRuns&) = delete;
  PartialRuns& operator=(const PartialRuns&) = delete;

  // Announces the feeds, fetches and targets of all pieces.
  //   Errors: as SessionSteps::Prepare; RESOURCE_EXHAUSTED naming the limit.
  void Setup(std::shared_ptr<tensorflow::PartialRunSetupRequest> request, SessionUse use,
             Done<tensorflow::PartialRunSetupResponse> done) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the piece with the request's feeds, which it consumes, and fetches.
  //   Errors: INVALID_ARGUMENT for an unknown handle, or as graph::PartialRun::Take; ABORTED
  //   another piece has failed; as the step.
  void RunPiece(std::shared_ptr<tensorflow::RunStepRequest> request,
                std::shared_ptr<CancellationToken> gone, SessionUse use,
                Done<tensorflow::RunStepResponse> done) ABSL_LOCKS_EXCLUDED(mu_);

  // A partial run whose last piece has not been run.
  struct Unfinished {
    int64_t step_id = 0;
    std::shared_ptr<const RegisteredStep> registered;
    // True if a piece has run at the workers.
    bool has_begun = false;
  };
  // Removes all partial runs. REQUIRES: no piece is in progress.
  std::vector<Unfinished> TakeAll() ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct PartialStep {
    PartialStep(std::shared_ptr<const RegisteredStep> step, int64_t id)
        : registered(std::move(step)), step_id(id), run(registered->step()) {}

    const std::shared_ptr<const RegisteredStep> registered;
    const int64_t step_id;
    // Separate from the table's lock: checking a piece may walk a large graph. Never held together
    // with it.
    absl::Mutex mu;
    graph::PartialRun run ABSL_GUARDED_BY(mu);
    // Guarded by PartialRuns::mu_, from here on.
    bool has_begun = false;
    bool is_over = false;
    // Pieces in progress, including those still being checked.
    int pieces = 0;
    absl::flat_hash_set<std::shared_ptr<StepCall>> calls;
  };

  // Called when a piece that started has ended.
  void EndPiece(const std::string& handle, const std::shared_ptr<PartialStep>& partial,
                const std::shared_ptr<StepCall>& call, bool is_last, const absl::Status& status,
                SessionUse use) ABSL_LOCKS_EXCLUDED(mu_);
  void LeavePiece(const std::shared_ptr<PartialStep>& partial, SessionUse use)
      ABSL_LOCKS_EXCLUDED(mu_);

  const MasterContext& context_;
  SessionWorkers& workers_;
  SessionSteps& steps_;
  SessionCalls& calls_;

  mutable absl::Mutex mu_;
  int64_t next_handle_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<PartialStep>> partials_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_PARTIAL_RUNS_H_
