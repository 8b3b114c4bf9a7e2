// SPDX-License-Identifier: Apache-2.0
// StepTable: which steps are open at a worker, and what runs in them.
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

// Thread-safe. A step is here from its first run until it is cleaned up, by its master or because
// its session has ended.
class StepTable final {
 public:
  // `exchanges` outlives it.
  StepTable(StepExchanges& exchanges, size_t max_steps)
      : exchanges_(exchanges), max_steps_(max_steps) {}

  // Whether the session of a run that begins is there still: it may have ended since it was looked
  // up, and then nobody would clean up the step.
  using IsAlive = absl::FunctionRef<bool()>;

  // A run of `graph` begins in the step.
  //   Errors: ABORTED if the graph has been run in it, the step or its session is over, or it is
  //   another session's; RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<std::shared_ptr<StepTransfers>> Begin(int64_t step_id, absl::string_view session,
                                                       absl::string_view graph, IsAlive is_alive)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A piece of a run of `graph` that is fed and fetched in pieces.
  struct Piece {
    std::shared_ptr<StepTransfers> exchange;
    std::shared_ptr<PartialRun> run;
    // It is the first one, of however many come at once: the run is to be started.
    bool is_first = false;
  };
  //   Errors: as of Begin.
  absl::StatusOr<Piece> BeginPiece(int64_t step_id, absl::string_view session,
                                   absl::string_view graph, IsAlive is_alive)
      ABSL_LOCKS_EXCLUDED(mu_);

  // What the step's feeds take, until the step is over.
  void Keep(int64_t step_id, Budget::Share feeds) ABSL_LOCKS_EXCLUDED(mu_);

  // What runs there, to be ended with the step.
  void AddRun(int64_t step_id, std::shared_ptr<GraphRun> run) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveRun(int64_t step_id, const GraphRun* run) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the step: its runs, and whatever waits in it.
  void Cleanup(int64_t step_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Those of a session.
  void CleanupSession(absl::string_view session) ABSL_LOCKS_EXCLUDED(mu_);
  void CleanupAll() ABSL_LOCKS_EXCLUDED(mu_);

  size_t step_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Step {
    std::string session;
    // Those that have been run, by their handles.
    absl::flat_hash_set<std::string> graphs;
    absl::flat_hash_map<const GraphRun*, std::shared_ptr<GraphRun>> runs;
    absl::flat_hash_map<std::string, std::shared_ptr<PartialRun>> partial;
    Budget::Share feeds;
  };

  // Makes or finds the entry of the step, with the graph in it.
  //   piece: null for a run that is none.
  absl::Status Enter(int64_t step_id, absl::string_view session, absl::string_view graph,
                     Piece* piece) ABSL_LOCKS_EXCLUDED(mu_);
  // Of what was entered: the step's exchange, or nothing of it stays.
  absl::StatusOr<std::shared_ptr<StepTransfers>> Open(int64_t step_id, absl::string_view graph,
                                                      IsAlive is_alive) ABSL_LOCKS_EXCLUDED(mu_);

  StepExchanges& exchanges_;
  const size_t max_steps_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<int64_t, Step> steps_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_STEP_TABLE_H_
