// SPDX-License-Identifier: Apache-2.0
// Worker: runs parts of graphs for masters; WorkerService without the wire format.
#ifndef FERRY_TENSORFLOW_WORKER_WORKER_H_
#define FERRY_TENSORFLOW_WORKER_WORKER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "base/budget.h"
#include "base/cancellation_token.h"
#include "rendezvous/device_name.h"
#include "rendezvous/recent_request_ids.h"
#include "tensorflow/graph/graph.h"
#include "tensorflow/worker/graph_run.h"
#include "tensorflow/worker/limits.h"
#include "tensorflow/worker/registered_graph.h"
#include "tensorflow/worker/session.h"
#include "tensorflow/worker/step_ring.h"
#include "tensorflow/worker/step_table.h"
#include "tensorflow/worker/step_transfers.h"
#include "tensorflow/worker/thread_pool.h"
#include "tensorflow/worker/transfer_log.h"

namespace ferry::worker {

class CollectiveBackend;
class CollectiveGpus;

struct WorkerOptions {
  TaskName task;
  // At least the host device, first.
  std::vector<WorkerDevice> devices;
  // Allocates memory for kernels; empty: the heap.
  BufferAllocator allocate;
  // The process's GPUs; null: GPU devices compute nothing. Must outlive the worker.
  Gpus* gpus = nullptr;
  // For `gpus`; null: collectives do not use NCCL.
  std::shared_ptr<CollectiveGpus> collectives;
  // Named in errors about unknown ops.
  std::string host_name = "this machine";
  // Nodes that run concurrently; 0: one per processor.
  int thread_count = 0;
  WorkerLimits limits;
};

// The session of a call; nullopt: the default session that every worker has.
using SessionHandle = std::optional<std::string>;

// One run of a graph.
struct RunRequest {
  SessionHandle session;
  std::string graph;
  int64_t step_id = 0;
  // 0: none.
  int64_t request_id = 0;
  // By key; sent into the step before anything runs.
  std::vector<std::pair<std::string, Tensor>> feeds;
  // Memory reserved for the feeds (Worker::ShareOfFeeds).
  Budget::Share feed_share;
  // Keys to return when everything has run.
  std::vector<std::string> fetches;
  // This is one piece, or the last, of a partial run.
  bool is_partial = false;
  bool is_last_partial = false;
  bool record_times = false;
};

struct RunResult {
  // In the order of `fetches`, without those returned earlier.
  std::vector<std::pair<std::string, Tensor>> fetched;
  // The graph that ran; null if none did.
  std::shared_ptr<const RegisteredGraph> graph;
  // With record_times: one per node of the plan.
  std::vector<NodeTimes> times;
};

// Thread-safe. Owns the threads that run nodes ("ferry-op-N").
class Worker final {
 public:
  using RunDone = absl::AnyInvocable<void(absl::Status, RunResult) &&>;

  // `worker_steps` must outlive it.
  Worker(WorkerSteps& worker_steps, WorkerOptions options);
  // Ends all steps, and blocks until running work has ended. REQUIRES: no concurrent or later
  // calls.
  ~Worker();

  const WorkerOptions& options() const { return options_; }

  //   Errors: INVALID_ARGUMENT for an empty handle; RESOURCE_EXHAUSTED.
  // Deletes sessions of earlier incarnations of the same master.
  //   is_isolated: the session has its own variables.
  absl::Status CreateSession(SessionOptions session, bool is_isolated) ABSL_LOCKS_EXCLUDED(mu_);
  // Deletes the session with its graphs and steps. Unknown handles are ignored.
  void DeleteSession(const std::string& handle) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the graph's handle. Takes time proportional to the graph, and may block.
  //   Errors: as Graph::Create and RegisteredGraph::Create; ABORTED for an unknown session;
  //   RESOURCE_EXHAUSTED.
  absl::StatusOr<std::string> RegisterGraph(const SessionHandle& session, tensorflow::GraphDef def);
  //   Errors: ABORTED for an unknown session or graph.
  absl::Status DeregisterGraph(const SessionHandle& session, const std::string& graph);

  // Reserves memory for that many bytes of feeds, until their step is over.
  //   Errors: RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<Budget::Share> ShareOfFeeds(size_t bytes);

  // Calls `done` once, on any thread, possibly before returning.
  //   cancellation: may be null; must outlive the run.
  //   Errors, through `done`: ABORTED for an unknown session or graph, a request id or step used
  //   before, or a step that is over; INVALID_ARGUMENT for keys, or a dead value; those of kernels
  //   and of receives; CANCELLED; RESOURCE_EXHAUSTED.
  void RunGraph(RunRequest request, CancellationToken* cancellation, RunDone done);

  void CleanupStep(int64_t step_id) { steps_.Cleanup(step_id); }
  // Removes variables, of all sessions; see Variables::Clear.
  void ClearContainers(absl::Span<const std::string> containers) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs it on a node thread: for work too long for a service's thread.
  void Run(absl::AnyInvocable<void() &&> function) { pool_->Run(std::move(function)); }

  // Timings of the last runs.
  const StepRing& trace() const { return ring_; }
  // Tensors received from other workers while logging was switched on.
  TransferLog& transfer_log() { return transfer_log_; }

  // For statistics and tests.
  size_t session_count() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t graph_count() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t step_count() const { return steps_.step_count(); }
  int variable_count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using SessionPtr = std::shared_ptr<Session>;
  struct Call;

  absl::StatusOr<SessionPtr> FindSession(const SessionHandle& handle) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<const RegisteredGraph>> FindGraph(const Session& session,
                                                                   const std::string& graph) const;
  absl::StatusOr<Budget::Share> ShareOfConstants(const graph::Graph& graph);
  std::vector<SessionPtr> Sessions() const ABSL_LOCKS_EXCLUDED(mu_);

  // Resolves the call's session, graph and keys, and opens the step with its feeds in it.
  //   begins: output; false for a piece of a run that had already begun.
  absl::Status Prepare(Call& call, bool& begins);
  std::shared_ptr<GraphRun> MakeRun(const std::shared_ptr<Call>& call);
  std::unique_ptr<CollectiveBackend> MakeCarrier(const std::shared_ptr<StepTransfers>& transfers);
  void EndRun(const std::shared_ptr<Call>& call, absl::Status status);
  void Fetch(const std::shared_ptr<Call>& call, absl::AnyInvocable<void(absl::Status) &&> done);
  void Complete(Call& call, absl::Status status);
  // Counts pending calls and runs.
  void BeginWork() ABSL_LOCKS_EXCLUDED(busy_mu_);
  void EndWork() ABSL_LOCKS_EXCLUDED(busy_mu_);

  // Constant after construction.
  WorkerSteps& worker_steps_;
  const WorkerOptions options_;
  // Memory of registered graphs and open steps. Declared before those.
  Budget constants_;
  Budget feeds_;
  std::shared_ptr<Devices> devices_;
  const SessionPtr common_session_;
  Executor executor_;
  const std::string handle_prefix_;

  StepTable steps_;
  StepRing ring_;
  TransferLog transfer_log_;
  RecentRequestIds recent_;
  std::atomic<int64_t> next_graph_{0};

  absl::Mutex busy_mu_;
  int busy_ ABSL_GUARDED_BY(busy_mu_) = 0;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, SessionPtr> sessions_ ABSL_GUARDED_BY(mu_);

  // Declared last: its threads use the rest.
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_WORKER_H_
