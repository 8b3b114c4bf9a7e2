// SPDX-License-Identifier: Apache-2.0
// Session: a client's graph and its steps.
#ifndef FERRY_TENSORFLOW_MASTER_SESSION_H_
#define FERRY_TENSORFLOW_MASTER_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "proto/tf_master.pb.h"
#include "tensorflow/graph/partial_run.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/registered_step.h"
#include "tensorflow/master/running_step.h"
#include "tensorflow/master/session_workers.h"
#include "tensorflow/master/step_cache.h"
#include "tensorflow/master/step_call.h"
#include "tensorflow/master/step_plan.h"

namespace ferry::master {

// Reads a client's graph, without placing it.
//   before: the graph to extend; null: none.
//   Errors: as graph::Graph::Create; RESOURCE_EXHAUSTED naming the limit.
absl::StatusOr<PlacedGraph> ReadGraph(tensorflow::GraphDef def, const PlacedGraph* before,
                                      const MasterOptions& options);
// Returns an estimate of its memory in bytes, as a message or as a graph.
size_t GraphMemory(const tensorflow::GraphDef& def);
//   Errors: RESOURCE_EXHAUSTED naming max_all_graph_bytes.
absl::Status TakeGraphShare(const MasterContext& context, size_t bytes, Budget::Share& share);

// Thread-safe. Must be closed. Callbacks run exactly once, with no lock held, on whichever thread
// completes the call, possibly before the method returns.
// Errors of all calls: FAILED_PRECONDITION once closed.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

  // `workers` have opened the session; `graph` is placed on their devices.
  Session(const MasterContext& context, std::shared_ptr<SessionWorkers> workers,
          tensorflow::ConfigProto config, std::shared_ptr<const PlacedGraph> graph,
          size_t graph_bytes, Budget::Share graph_share);
  // REQUIRES: it has been closed.
  ~Session() = default;

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::string& handle() const { return workers_->handle(); }

  // Steps in progress keep their version of the graph.
  //   Errors: ABORTED if the request is not for the current version; those of ReadGraph.
  void Extend(std::shared_ptr<tensorflow::ExtendSessionRequest> request,
              Done<tensorflow::ExtendSessionResponse> done);
  // Consumes the request's feeds.
  void RunStep(std::shared_ptr<tensorflow::RunStepRequest> request,
               std::shared_ptr<CancellationToken> gone, Done<tensorflow::RunStepResponse> done);
  void PartialRunSetup(std::shared_ptr<tensorflow::PartialRunSetupRequest> request,
                       Done<tensorflow::PartialRunSetupResponse> done);
  void MakeCallable(std::shared_ptr<tensorflow::MakeCallableRequest> request,
                    Done<tensorflow::MakeCallableResponse> done);
  // Consumes the request's feeds.
  void RunCallable(std::shared_ptr<tensorflow::RunCallableRequest> request,
                   std::shared_ptr<CancellationToken> gone,
                   Done<tensorflow::RunCallableResponse> done);
  void ReleaseCallable(int64_t callable);
  // Reports all devices as local.
  tensorflow::ListDevicesResponse ListDevices() const;

  // Ends calls in progress with `why`. Calls `done` once everything has ended and the workers have
  // been notified. Call at most once.
  void Close(absl::Status why, absl::AnyInvocable<void() &&> done);
  // Fails calls that use workers which are no longer in the cluster.
  void NoteCluster(const Cluster& cluster);

  // Time of the last call; nullopt while calls are in progress.
  std::optional<absl::Time> idle_since() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t step_graph_count() const { return cache_.size(); }
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Keeps the session from closing during a call and its cleanup.
  class Use final {
   public:
    explicit Use(std::shared_ptr<Session> session) : session_(std::move(session)) {}
    Use(Use&&) = default;
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (session_ != nullptr) session_->EndUse();
    }

   private:
    std::shared_ptr<Session> session_;
  };

  // A partial run.
  struct PartialStep {
    PartialStep(std::shared_ptr<const RegisteredStep> step, int64_t id)
        : registered(std::move(step)), step_id(id), run(registered->step()) {}

    const std::shared_ptr<const RegisteredStep> registered;
    const int64_t step_id;
    // Separate from the session's lock: checking a piece may walk a large graph.
    absl::Mutex mu;
    graph::PartialRun run ABSL_GUARDED_BY(mu);
    // Guarded by the session's lock, from here on.
    bool has_begun = false;
    bool is_over = false;
    // Pieces in progress, including those still being checked.
    int pieces = 0;
    absl::flat_hash_set<std::shared_ptr<StepCall>> calls;
  };
  struct Callable {
    std::shared_ptr<const RegisteredStep> registered;
    tensorflow::CallableOptions options;
  };

  absl::StatusOr<Use> BeginUse() ABSL_LOCKS_EXCLUDED(mu_);
  void EndUse() ABSL_LOCKS_EXCLUDED(mu_);
  // Called when a closed session has no calls left.
  void FinishClosing() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<const PlacedGraph> graph() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t NewStepId() const { return static_cast<int64_t>(context_.random() >> 7); }

  absl::Status CheckOptions(const tensorflow::RunOptions& options) const;
  ClientLimits LimitsOf(const tensorflow::RunOptions& options,
                        std::shared_ptr<CancellationToken> gone) const;

  // Finds or makes the step for a request. `use` is held until `done` is called.
  void Prepare(graph::StepRequest request, std::shared_ptr<Use> use, StepCache::Done done);
  // Plans and registers a step, on another thread.
  void Make(graph::StepRequest request, StepCache::Done done);

  // Registers the call so that Close can cancel it. Cancelled at once if the session is closed.
  std::shared_ptr<StepCall> NewCall(ClientLimits limits, RunningStep::Done done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Runs a step for the call. After the step has ended and the call is answered, calls `after` with
  // the result and whether workers were called.
  using After = absl::AnyInvocable<void(const absl::Status&, bool has_run) &&>;
  void Launch(std::shared_ptr<const RegisteredStep> registered, RunSpec spec,
              std::shared_ptr<StepCall> call, After after);
  // Runs a complete step, and cleans up after it.
  void RunWhole(StepCache::Result registered, RunSpec spec, std::shared_ptr<StepCall> call,
                std::shared_ptr<Use> use);
  void RunPiece(std::shared_ptr<tensorflow::RunStepRequest> request,
                std::shared_ptr<CancellationToken> gone, std::shared_ptr<Use> use,
                Done<tensorflow::RunStepResponse> done);
  // Called when a piece that started has ended.
  void EndPiece(const std::string& handle, const std::shared_ptr<PartialStep>& partial,
                const std::shared_ptr<StepCall>& call, bool is_last, const absl::Status& status,
                std::shared_ptr<Use> use) ABSL_LOCKS_EXCLUDED(mu_);
  void LeavePiece(const std::shared_ptr<PartialStep>& partial, std::shared_ptr<Use> use)
      ABSL_LOCKS_EXCLUDED(mu_);

  const MasterContext& context_;
  const std::shared_ptr<SessionWorkers> workers_;
  const tensorflow::ConfigProto config_;
  StepCache cache_;

  mutable absl::Mutex mu_;
  std::shared_ptr<const PlacedGraph> graph_ ABSL_GUARDED_BY(mu_);
  size_t graph_bytes_ ABSL_GUARDED_BY(mu_);
  Budget::Share graph_share_ ABSL_GUARDED_BY(mu_);
  // OK until closed.
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  absl::AnyInvocable<void() &&> when_closed_ ABSL_GUARDED_BY(mu_);
  int uses_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_use_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<std::shared_ptr<StepCall>> calls_ ABSL_GUARDED_BY(mu_);
  int64_t next_callable_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<int64_t, std::shared_ptr<const Callable>> callables_ ABSL_GUARDED_BY(mu_);
  int64_t next_partial_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<PartialStep>> partials_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_H_
