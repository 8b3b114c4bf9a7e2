// SPDX-License-Identifier: Apache-2.0
// Session: a client's graph, and the steps that it runs.
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

// Reads a graph that a client sent; it is not placed.
//   before: what was there before; null: nothing.
//   Errors: as graph::Graph::Create; RESOURCE_EXHAUSTED naming the limit.
absl::StatusOr<PlacedGraph> ReadGraph(tensorflow::GraphDef def, const PlacedGraph* before,
                                      const MasterOptions& options);
// About as many bytes as it takes, now or as a graph.
size_t GraphMemory(const tensorflow::GraphDef& def);
//   Errors: RESOURCE_EXHAUSTED naming max_all_graph_bytes.
absl::Status TakeGraphShare(const MasterContext& context, size_t bytes, Budget::Share& share);

// Thread-safe. Runs until it is closed. Callbacks run exactly once, with no lock held, on whichever
// thread ends the wait; perhaps before the method has returned.
// Errors of all calls: FAILED_PRECONDITION once it is closed.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  template <typename Response>
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;

  // `workers` have been opened; `graph` is placed on their devices.
  Session(const MasterContext& context, std::shared_ptr<SessionWorkers> workers,
          tensorflow::ConfigProto config, std::shared_ptr<const PlacedGraph> graph,
          size_t graph_bytes, Budget::Share graph_share);
  // REQUIRES: it has been closed.
  ~Session() = default;

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::string& handle() const { return workers_->handle(); }

  // Steps that run meanwhile keep the graph that they began with.
  //   Errors: ABORTED for another version than the present one; those of ReadGraph.
  void Extend(std::shared_ptr<tensorflow::ExtendSessionRequest> request,
              Done<tensorflow::ExtendSessionResponse> done);
  // Takes the feeds out of the request.
  void RunStep(std::shared_ptr<tensorflow::RunStepRequest> request,
               std::shared_ptr<CancellationToken> gone, Done<tensorflow::RunStepResponse> done);
  void PartialRunSetup(std::shared_ptr<tensorflow::PartialRunSetupRequest> request,
                       Done<tensorflow::PartialRunSetupResponse> done);
  void MakeCallable(std::shared_ptr<tensorflow::MakeCallableRequest> request,
                    Done<tensorflow::MakeCallableResponse> done);
  // Takes the feeds out of the request.
  void RunCallable(std::shared_ptr<tensorflow::RunCallableRequest> request,
                   std::shared_ptr<CancellationToken> gone,
                   Done<tensorflow::RunCallableResponse> done);
  void ReleaseCallable(int64_t callable);
  // All of its devices count as local ones.
  tensorflow::ListDevicesResponse ListDevices() const;

  // What runs ends with `why`; when everything is over, and the workers have been told, `done`.
  // Only once.
  void Close(absl::Status why, absl::AnyInvocable<void() &&> done);
  // Fails what needs a worker that lives no more.
  void NoteCluster(const Cluster& cluster);

  // When it was last asked for something; nothing while it is at work.
  std::optional<absl::Time> idle_since() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t step_graph_count() const { return cache_.size(); }
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A call is under way, or what it leaves to do: the session is not closed before.
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

  // A step that is fed and fetched in pieces.
  struct PartialStep {
    PartialStep(std::shared_ptr<const RegisteredStep> step, int64_t id)
        : registered(std::move(step)), step_id(id), run(registered->step()) {}

    const std::shared_ptr<const RegisteredStep> registered;
    const int64_t step_id;
    // Looks through the graph, which may be large: not under the session's lock.
    absl::Mutex mu;
    graph::PartialRun run ABSL_GUARDED_BY(mu);
    // Guarded by the session's lock, from here on.
    bool has_begun = false;
    bool is_over = false;
    // Pieces under way, those that are looked at among them.
    int pieces = 0;
    absl::flat_hash_set<std::shared_ptr<StepCall>> calls;
  };
  struct Callable {
    std::shared_ptr<const RegisteredStep> registered;
    tensorflow::CallableOptions options;
  };

  absl::StatusOr<Use> BeginUse() ABSL_LOCKS_EXCLUDED(mu_);
  void EndUse() ABSL_LOCKS_EXCLUDED(mu_);
  // The session, closed by now, has nothing under way.
  void FinishClosing() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<const PlacedGraph> graph() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t NewStepId() const { return static_cast<int64_t>(context_.random() >> 7); }

  absl::Status CheckOptions(const tensorflow::RunOptions& options) const;
  ClientLimits LimitsOf(const tensorflow::RunOptions& options,
                        std::shared_ptr<CancellationToken> gone) const;

  // The step for a request, from the cache or made now. `use` lives until it is there.
  void Prepare(graph::StepRequest request, std::shared_ptr<Use> use, StepCache::Done done);
  // Plans and registers, elsewhere.
  void Make(graph::StepRequest request, StepCache::Done done);

  // Files the call so that closing finds it. It is over at once if the session is closed.
  std::shared_ptr<StepCall> NewCall(ClientLimits limits, RunningStep::Done done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Runs a step for the call. When it has ended, and the call has been answered, `after` is called
  // with how, and whether workers were asked.
  using After = absl::AnyInvocable<void(const absl::Status&, bool has_run) &&>;
  void Launch(std::shared_ptr<const RegisteredStep> registered, RunSpec spec,
              std::shared_ptr<StepCall> call, After after);
  // A whole step, cleaned up at the end.
  void RunWhole(StepCache::Result registered, RunSpec spec, std::shared_ptr<StepCall> call,
                std::shared_ptr<Use> use);
  void RunPiece(std::shared_ptr<tensorflow::RunStepRequest> request,
                std::shared_ptr<CancellationToken> gone, std::shared_ptr<Use> use,
                Done<tensorflow::RunStepResponse> done);
  // A piece that was begun is over.
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
  // OK until it is closed.
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
