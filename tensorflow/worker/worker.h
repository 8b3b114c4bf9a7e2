// SPDX-License-Identifier: Apache-2.0
// Worker: runs parts of graphs for masters; what WorkerService says, without the wire.
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
  // At least the host's, first.
  std::vector<WorkerDevice> devices;
  // Of memory for what kernels compute; empty: the heap.
  BufferAllocator allocate;
  // Of this process; null: devices that are GPUs compute nothing. Outlives the worker.
  Gpus* gpus = nullptr;
  // Of `gpus`; null: no collective goes by NCCL.
  std::shared_ptr<CollectiveGpus> collectives;
  // Stands in errors about unknown ops.
  std::string host_name = "this machine";
  // Nodes that run at the same time; 0: as many as there are processors.
  int thread_count = 0;
  WorkerLimits limits;
};

// Which session a call is of; none: the one that every worker has.
using SessionHandle = std::optional<std::string>;

// One run of a graph.
struct RunRequest {
  SessionHandle session;
  std::string graph;
  int64_t step_id = 0;
  // 0: none.
  int64_t request_id = 0;
  // By their keys; what is sent into the step before anything runs.
  std::vector<std::pair<std::string, Tensor>> feeds;
  // What they take (Worker::ShareOfFeeds).
  Budget::Share feed_share;
  // What is wanted when all has run.
  std::vector<std::string> fetches;
  // The graph is fed and fetched in pieces, of which this is one, or the last.
  bool is_partial = false;
  bool is_last_partial = false;
  bool record_times = false;
};

struct RunResult {
  // In the order of `fetches`, without those that were there before.
  std::vector<std::pair<std::string, Tensor>> fetched;
  // What has run; null if nothing has been.
  std::shared_ptr<const RegisteredGraph> graph;
  // With record_times: that of each node of the plan.
  std::vector<NodeTimes> times;
};

// Thread-safe. Owns the threads that nodes run on ("ferry-op-N").
class Worker final {
 public:
  using RunDone = absl::AnyInvocable<void(absl::Status, RunResult) &&>;

  // `exchanges` outlives it.
  Worker(StepExchanges& exchanges, WorkerOptions options);
  // Ends all steps, and waits for what runs. No other call is under way, nor comes.
  ~Worker();

  const WorkerOptions& options() const { return options_; }

  //   Errors: INVALID_ARGUMENT for an empty handle; RESOURCE_EXHAUSTED.
  // Sessions of the same master in another life are deleted.
  //   is_isolated: variables are its own.
  absl::Status CreateSession(SessionOptions session, bool is_isolated) ABSL_LOCKS_EXCLUDED(mu_);
  // With its graphs and steps. None of that name: nothing happens.
  void DeleteSession(const std::string& handle) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the graph's handle. Takes time for the graph, and may block.
  //   Errors: as Graph::Create and RegisteredGraph::Create; ABORTED unknown session;
  //   RESOURCE_EXHAUSTED.
  absl::StatusOr<std::string> RegisterGraph(const SessionHandle& session, tensorflow::GraphDef def);
  //   Errors: ABORTED unknown session or graph.
  absl::Status DeregisterGraph(const SessionHandle& session, const std::string& graph);

  // Room for feeds of so many bytes, until their step is over.
  //   Errors: RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<Budget::Share> ShareOfFeeds(size_t bytes);

  // `done`: once, on any thread, perhaps inside.
  //   cancellation: may be null; outlives the run.
  //   Errors, through `done`: ABORTED unknown session or graph, request id or step used before,
  //   step over; INVALID_ARGUMENT for keys, or a dead value; those of kernels and of receives;
  //   CANCELLED; RESOURCE_EXHAUSTED.
  void RunGraph(RunRequest request, CancellationToken* cancellation, RunDone done);

  void CleanupStep(int64_t step_id) { steps_.Cleanup(step_id); }
  // Forgets variables, of all sessions; see Variables::Clear.
  void ClearContainers(absl::Span<const std::string> containers) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs it on a thread for nodes: what takes longer than a service's thread should.
  void Run(absl::AnyInvocable<void() &&> function) { pool_->Run(std::move(function)); }

  // What the last runs did.
  const StepRing& trace() const { return ring_; }
  // What came from other workers while a master wanted to know.
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

  // Looks everything up, and opens the step with its feeds in it.
  //   begins: is set; false for a piece of a run that was begun before.
  absl::Status Prepare(Call& call, bool& begins);
  std::shared_ptr<GraphRun> MakeRun(const std::shared_ptr<Call>& call);
  std::unique_ptr<CollectiveBackend> MakeCarrier(const std::shared_ptr<StepTransfers>& exchange);
  void EndRun(const std::shared_ptr<Call>& call, absl::Status status);
  void Fetch(const std::shared_ptr<Call>& call, absl::AnyInvocable<void(absl::Status) &&> done);
  void Complete(Call& call, absl::Status status);
  // Calls and runs that are under way.
  void BeginWork() ABSL_LOCKS_EXCLUDED(busy_mu_);
  void EndWork() ABSL_LOCKS_EXCLUDED(busy_mu_);

  // Constant after construction.
  StepExchanges& exchanges_;
  const WorkerOptions options_;
  // Of registered graphs, and of steps that are open. Before those.
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

  // Last: its threads use the rest.
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_WORKER_H_
