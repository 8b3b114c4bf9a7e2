// SPDX-License-Identifier: Apache-2.0
// Session: a client's graph and its calls, from CreateSession to CloseSession.
#ifndef FERRY_TENSORFLOW_MASTER_SESSION_H_
#define FERRY_TENSORFLOW_MASTER_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "proto/tf_master.pb.h"
#include "tensorflow/master/callables.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/partial_runs.h"
#include "tensorflow/master/session_calls.h"
#include "tensorflow/master/session_graph.h"
#include "tensorflow/master/session_steps.h"
#include "tensorflow/master/session_workers.h"
#include "tensorflow/master/step_plan.h"

namespace ferry::master {

// Admits calls until it is closed, and ends once the calls in progress and their cleanup have
// ended; SessionGraph, SessionSteps, SessionCalls, Callables and PartialRuns do the work.
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
  //   Errors: as SessionGraph::Extend.
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
  size_t step_graph_count() const { return steps_.size(); }
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Use;

  //   Errors: FAILED_PRECONDITION once closed.
  absl::StatusOr<SessionUse> BeginUse() ABSL_LOCKS_EXCLUDED(mu_);
  void EndUse() ABSL_LOCKS_EXCLUDED(mu_);
  // Called when a closed session has no calls left.
  void FinishClosing() ABSL_LOCKS_EXCLUDED(mu_);

  const MasterContext& context_;
  const std::shared_ptr<SessionWorkers> workers_;
  const tensorflow::ConfigProto config_;
  SessionGraph graph_;
  SessionSteps steps_;
  SessionCalls calls_;
  Callables callables_;
  PartialRuns partial_runs_;

  mutable absl::Mutex mu_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::AnyInvocable<void() &&> when_closed_ ABSL_GUARDED_BY(mu_);
  int uses_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_use_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_SESSION_H_
