// SPDX-License-Identifier: Apache-2.0
// FakeCluster: workers that run graphs of scalars, and die on request.
#ifndef FERRY_TESTS_TENSORFLOW_MASTER_FAKE_CLUSTER_H_
#define FERRY_TESTS_TENSORFLOW_MASTER_FAKE_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

#include "tensorflow/master/cluster.h"
#include "tensorflow/master/worker_link.h"

namespace ferry::master {

class FakeCluster;

// One incarnation of a worker. Everything happens in FakeCluster::Step, one call at a time; calls
// that result are queued.
class FakeWorker final : public WorkerLink, public std::enable_shared_from_this<FakeWorker> {
 public:
  FakeWorker(FakeCluster& cluster, int task, uint64_t incarnation, int gpus);

  const std::string& name() const { return name_; }
  uint64_t incarnation() const { return incarnation_; }
  bool is_dead() const { return is_dead_; }
  ClusterWorker Describe();

  // --- State for tests ---
  std::set<std::string> sessions;
  // Sessions with state of their own.
  std::set<std::string> isolated;
  // By handle.
  std::map<std::string, tensorflow::GraphDef> graphs;
  std::map<std::string, std::string> session_of_graph;
  // Steps that have begun here and were not cleaned up.
  std::set<int64_t> steps;
  std::set<int64_t> cleaned;
  std::vector<tensorflow::CleanupAllRequest> resets;
  std::vector<tensorflow::RunGraphRequest> runs;
  // The timeout of the last CreateWorkerSession.
  absl::Duration open_timeout;
  int register_count = 0;
  tensorflow::RegisterGraphRequest last_registered;

  // --- Behaviour ---
  // Instead of answering RunGraph: an error in the body, or OK to run as usual.
  std::function<absl::Status(const tensorflow::RunGraphRequest&)> on_run;
  // Runs never end by themselves.
  bool hangs = false;
  absl::Status register_error;
  absl::Status open_error;
  // The result of that many calls of CleanupGraph and DeleteWorkerSession, which do nothing.
  int deaf_times = 0;
  absl::Status deaf_error = absl::UnavailableError("Socket closed");
  int told_count = 0;

  // Whether such a call is dropped.
  bool IsDeaf() {
    ++told_count;
    return deaf_times > 0 && deaf_times-- > 0;
  }
  // The process has ended: calls end UNAVAILABLE.
  void Kill();

  void CreateWorkerSession(const tensorflow::CreateWorkerSessionRequest& request, CallLimits limits,
                           Done<tensorflow::CreateWorkerSessionResponse> done) override;
  void DeleteWorkerSession(const tensorflow::DeleteWorkerSessionRequest& request, CallLimits limits,
                           Done<tensorflow::DeleteWorkerSessionResponse> done) override;
  void RegisterGraph(const tensorflow::RegisterGraphRequest& request, CallLimits limits,
                     Done<tensorflow::RegisterGraphResponse> done) override;
  void DeregisterGraph(const tensorflow::DeregisterGraphRequest& request, CallLimits limits,
                       Done<tensorflow::DeregisterGraphResponse> done) override;
  void RunGraph(const tensorflow::RunGraphRequest& request, CallLimits limits,
                Done<tensorflow::RunGraphResponse> done) override;
  void CleanupGraph(const tensorflow::CleanupGraphRequest& request, CallLimits limits,
                    Done<tensorflow::CleanupGraphResponse> done) override;
  void CleanupAll(const tensorflow::CleanupAllRequest& request, CallLimits limits,
                  Done<tensorflow::CleanupAllResponse> done) override;

 private:
  friend class FakeCluster;

  struct Running {
    tensorflow::RunGraphRequest request;
    CallLimits limits;
    CancellationToken::CallbackId token = CancellationToken::kNoCallback;
    Done<tensorflow::RunGraphResponse> done;
  };

  // Queues an answer, which is `body`'s unless the worker has died by then.
  template <typename Response>
  void Queue(Done<Response> done, absl::AnyInvocable<absl::StatusOr<Response>() &&> body);
  absl::Status CheckSession(const std::string& handle) const;
  void Begin(tensorflow::RunGraphRequest request, CallLimits limits,
             Done<tensorflow::RunGraphResponse> done);
  void End(int64_t run, absl::StatusOr<tensorflow::RunGraphResponse> response);
  // The result of a run as far as all inputs are available; nothing while it waits for others.
  std::optional<tensorflow::RunGraphResponse> TryRun(const Running& run);

  FakeCluster& cluster_;
  const int task_;
  const uint64_t incarnation_;
  const int gpus_;
  const std::string name_;
  bool is_dead_ = false;
  int64_t last_run_ = 0;
  std::map<int64_t, Running> running_;
  // The feeds of a step, by key.
  std::map<int64_t, std::map<std::string, tensorflow::TensorProto>> fed_;
  std::set<int64_t> request_ids_;
  std::map<int64_t, std::string> session_of_step_;
};

class FakeCluster final : public ClusterSource {
 public:
  explicit FakeCluster(int workers, int gpus = 0);

  FakeWorker& worker(int task) { return *workers_[static_cast<size_t>(task)]; }
  int size() const { return static_cast<int>(workers_.size()); }
  // Another incarnation of it; the old one is dead.
  void Restart(int task);
  // Whether the master is notified of it; it is, initially.
  void SetListed(int task, bool is_listed) { is_listed_[static_cast<size_t>(task)] = is_listed; }

  Cluster Now() override;

  void Post(absl::AnyInvocable<void() &&> event) { events_.push_back(std::move(event)); }
  size_t event_count() const { return events_.size(); }
  // Runs the event of that index.
  void Step(size_t index = 0);
  // Runs all, and those that they lead to.
  void Pump();

  // Sessions, graphs and steps at all live workers.
  std::string Leftovers() const;

 private:
  friend class FakeWorker;

  // Tries all runs of the step again.
  void Look(int64_t step_id);
  // The value of "x:0" in a step, from the worker that runs the graph with that _Send.
  std::optional<tensorflow::TensorProto> Received(int64_t step_id, const std::string& key);

  const int gpus_;
  uint64_t last_incarnation_ = 1000;
  std::vector<std::shared_ptr<FakeWorker>> workers_;
  std::vector<std::shared_ptr<FakeWorker>> dead_;
  std::vector<bool> is_listed_;
  std::deque<absl::AnyInvocable<void() &&>> events_;
};

}  // namespace ferry::master

#endif  // FERRY_TESTS_TENSORFLOW_MASTER_FAKE_CLUSTER_H_
