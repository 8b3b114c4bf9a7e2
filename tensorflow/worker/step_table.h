// SPDX-License-Identifier: Apache-2.0
// StepTable: a worker's open steps and their runs.
#ifndef FERRY_TENSORFLOW_WORKER_STEP_TABLE_H_
#define FERRY_TENSORFLOW_WORKER_STEP_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "base/budget.h"
#include "tensorflow/worker/graph_run.h"
#include "tensorflow/worker/partial_run.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

// Thread-safe. A step is open from its first run until its master cleans it up, or its session
// ends.
class StepTable final {
 public:
  // `worker_steps` must outlive it.
  StepTable(WorkerSteps& worker_steps, size_t max_steps)
      : worker_steps_(worker_steps), max_steps_(max_steps) {}

  // Returns true if the run's session still exists. It may have ended since it was looked up, and
  // then nothing else would clean up the step.
  using IsAlive = absl::FunctionRef<bool()>;

  // Begins a run of `graph` in the step.
  //   Errors: ABORTED if the graph has already run in it, the step or its session is over, or the
  //   step belongs to another session; RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<std::shared_ptr<StepTransfers>> Begin(int64_t step_id, absl::string_view session,
                                                       absl::string_view graph, IsAlive is_alive)
      ABSL_LOCKS_EXCLUDED(mu_);

  // One piece of a partial run of `graph`.
  struct Piece {
    std::shared_ptr<StepTransfers> transfers;
    std::shared_ptr<PartialRun> run;
    // True for exactly one of concurrent pieces: its caller must start the run.
    bool is_first = false;
  };
  //   Errors: as Begin.
  absl::StatusOr<Piece> BeginPiece(int64_t step_id, absl::string_view session,
                                   absl::string_view graph, IsAlive is_alive)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Holds the memory reserved for feeds until the step is over.
  void Keep(int64_t step_id, Budget::Share feeds) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds a run, to be cancelled when the step ends.
  void AddRun(int64_t step_id, std::shared_ptr<GraphRun> run) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveRun(int64_t step_id, const GraphRun* run) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the step: cancels its runs and pending transfers.
  void Cleanup(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all steps of a session.
  void CleanupSession(absl::string_view session) ABSL_LOCKS_EXCLUDED(mu_);
  void CleanupAll() ABSL_LOCKS_EXCLUDED(mu_);

  size_t step_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Step {
    std::string session;
    // Handles of graphs that have run.
    absl::flat_hash_set<std::string> graphs;
    absl::flat_hash_map<const GraphRun*, std::shared_ptr<GraphRun>> runs;
    absl::flat_hash_map<std::string, std::shared_ptr<PartialRun>> partial;
    Budget::Share feeds;
  };

  // Creates or finds the step's entry, and adds the graph to it.
  //   piece: null if it is not a partial run.
  absl::Status Enter(int64_t step_id, absl::string_view session, absl::string_view graph,
                     Piece* piece) ABSL_LOCKS_EXCLUDED(mu_);
  // Opens the step's transfers; on failure undoes Enter.
  absl::StatusOr<std::shared_ptr<StepTransfers>> Open(int64_t step_id, absl::string_view graph,
                                                      IsAlive is_alive) ABSL_LOCKS_EXCLUDED(mu_);

  WorkerSteps& worker_steps_;
  const size_t max_steps_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<int64_t, Step> steps_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_STEP_TABLE_H_
