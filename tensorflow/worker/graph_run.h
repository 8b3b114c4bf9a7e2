// SPDX-License-Identifier: Apache-2.0
// GraphRun: one run of a plan: each node once, when all that it waits for is there.
#ifndef FERRY_TENSORFLOW_WORKER_GRAPH_RUN_H_
#define FERRY_TENSORFLOW_WORKER_GRAPH_RUN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "base/cancellation_token.h"
#include "tensorflow/worker/plan.h"
#include "tensorflow/worker/step_transfers.h"

namespace ferry::worker {

// Runs a function some time, on a thread where it may take long; never inside the call.
using Executor = std::function<void(absl::AnyInvocable<void() &&>)>;

// When a node ran, in nanoseconds of GraphRunOptions::now_ns. All 0: it did not.
struct NodeTimes {
  // All that it waits for was there.
  int64_t ready_ns = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  // Of a receive: how the tensor came (Received::path). Of exchange nodes: its bytes.
  absl::string_view path;
  size_t bytes = 0;
  // The system's number of the thread that it ended on.
  int thread = 0;
};

class ReadyNodes;
class StepCollectives;

struct GraphRunOptions {
  // Outlives the run.
  const Executor* executor = nullptr;
  // Since 1970.
  std::function<int64_t()> now_ns;
  bool record_times = false;
  // Null only if no node is a collective.
  std::shared_ptr<StepCollectives> collectives;
};

// Thread-safe. Keeps itself as long as it runs. TransferEngine nodes wait without a thread. What
// the threads of others bring in (a tensor that arrives) is carried on there as long as it is known
// to be quick, else by the executor. Never recurses: a graph may be as deep as it likes.
//
// A node with a dead input does not run and gives dead outputs; a dead value is sent on as one.
//
// The first error ends the run, of those that came before its end the first that no other one has
// caused: no node is begun any more, receives are called off, the step is aborted with it, and
// `done` comes when the nodes that are running have ended.
class GraphRun final : public std::enable_shared_from_this<GraphRun> {
 public:
  // Called exactly once, with no lock held, on any thread, perhaps inside Start or Cancel.
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  static std::shared_ptr<GraphRun> Create(std::shared_ptr<const Plan> plan,
                                          std::shared_ptr<StepTransfers> exchange,
                                          GraphRunOptions options, Done done);

  // Once.
  void Start();
  // Ends it with `why`, unless it has ended. REQUIRES: not OK.
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  const Plan& plan() const { return *plan_; }
  // One for each node if they are recorded. Not before `done`.
  const std::vector<NodeTimes>& times() const { return times_; }

 private:
  using Work = ReadyNodes;

  // A receive that was begun. It may be answered while it is being issued, on this or another
  // thread, and then whoever issues it goes on with it.
  struct Receive {
    enum Phase : int { kIssuing, kIssued, kAnswered };
    std::atomic<int> phase{kIssuing};
    absl::Status status;
    Received received;
  };

  GraphRun(std::shared_ptr<const Plan> plan, std::shared_ptr<StepTransfers> exchange,
           GraphRunOptions options, Done done);

  // Runs what is in `work`, and what gets ready by that. The caller keeps this.
  void GoOn(Work& work);
  // Has the executor do so.
  void Submit(std::vector<int> nodes);
  // Has the executor go on with other nodes than the first of `work`, if that saves time.
  void Spread(Work& work);

  // Run a node, and add those that are ready then to `work`.
  void RunNode(int index, Work& work);
  void Compute(int index, Work& work);
  void Send(int index, Work& work);
  void IssueReceive(int index, Work& work);
  void IssueCollective(int index, Work& work);
  // It was issued; goes on with it if it has been answered meanwhile.
  void WhenIssued(int index, Work& work);
  void FinishReceive(int index, Work& work);
  void OnReceived(int index, absl::Status status, Received received);
  void Propagate(int index, absl::Span<Tensor> outputs, bool is_dead, Work& work);
  // The node is done, and `ready` others are to be run.
  void Leave(int ready);

  bool IsDead(int index) const;
  // Longer than it takes to wake a thread up, as far as is known.
  bool IsLong(int index) const;
  bool IsKnownToBeShort(int index) const;
  absl::Span<const Tensor> InputsOf(const Plan::Node& node) const;
  void MarkReady(int index, Work& work);
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<StepTransfers> exchange_;
  const GraphRunOptions options_;

  // One for each input of each node; written by its producer, read by its consumer.
  std::vector<Tensor> slots_;
  // Edges over which nothing has come yet.
  std::unique_ptr<std::atomic<int>[]> pending_;
  // Something that the node waited for was dead.
  std::unique_ptr<std::atomic<bool>[]> is_dead_;
  std::unique_ptr<Receive[]> receives_;
  // Written by whoever runs the node.
  std::vector<NodeTimes> times_;
  // Nodes that are ready or running.
  std::atomic<int64_t> outstanding_{0};
  std::atomic<bool> has_failed_{false};
  CancellationToken cancellation_;

  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool is_finished_ ABSL_GUARDED_BY(mu_) = false;
  // While it runs; taken by Finish.
  Done done_;
  std::shared_ptr<GraphRun> self_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_GRAPH_RUN_H_
