// SPDX-License-Identifier: Apache-2.0
// GraphRun: one run of a plan; each node runs once, when its inputs and dependencies are ready.
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

// Runs a function later, on a thread where it may take long; never inside the call.
using Executor = std::function<void(absl::AnyInvocable<void() &&>)>;

// When a node ran, in nanoseconds of GraphRunOptions::now_ns. All 0 if it did not run.
struct NodeTimes {
  // All inputs and dependencies were ready.
  int64_t ready_ns = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  // Receives: the tensor's path (Received::path). Communication nodes: its bytes.
  absl::string_view path;
  size_t bytes = 0;
  // System thread id of the thread that finished it.
  int thread = 0;
};

class ReadyNodes;
class StepCollectives;

struct GraphRunOptions {
  // Must outlive the run.
  const Executor* executor = nullptr;
  // Nanoseconds since 1970.
  std::function<int64_t()> now_ns;
  bool record_times = false;
  // May be null only if no node is a collective.
  std::shared_ptr<StepCollectives> collectives;
};

// Thread-safe. Keeps itself alive while it runs. Communication nodes (sends, receives, collectives)
// wait without a thread. Work that follows from a received tensor runs on the delivering thread as
// long as it is known to be short, and otherwise on the executor. Never recurses: graphs may be
// arbitrarily deep.
//
// A node with a dead input does not run and its outputs are dead; dead values are sent as such.
//
// The first error ends the run. Of the errors that arrive before its end, the first that is not
// derived is reported: no further node starts, receives are cancelled, the step is aborted with it,
// and `done` is called when the running nodes have ended.
class GraphRun final : public std::enable_shared_from_this<GraphRun> {
 public:
  // Called exactly once, with no lock held, on any thread, possibly inside Start or Cancel.
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  static std::shared_ptr<GraphRun> Create(std::shared_ptr<const Plan> plan,
                                          std::shared_ptr<StepTransfers> transfers,
                                          GraphRunOptions options, Done done);

  // Call once.
  void Start();
  // Ends the run with `why`, unless it has ended. REQUIRES: `why` is not OK.
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  const Plan& plan() const { return *plan_; }
  // One per node if recorded. Valid only after `done`.
  const std::vector<NodeTimes>& times() const { return times_; }

 private:
  using Work = ReadyNodes;

  // A pending receive. If it completes while it is being issued, on this or another thread, the
  // issuing thread continues with its result.
  struct Receive {
    enum Phase : int { kIssuing, kIssued, kAnswered };
    std::atomic<int> phase{kIssuing};
    absl::Status status;
    Received received;
  };

  GraphRun(std::shared_ptr<const Plan> plan, std::shared_ptr<StepTransfers> transfers,
           GraphRunOptions options, Done done);

  // Runs the nodes in `work`, and those that become ready. The caller must keep this object alive.
  void GoOn(Work& work);
  // Runs these nodes on the executor.
  void Submit(std::vector<int> nodes);
  // Hands nodes other than the first of `work` to the executor, if that saves time.
  void Spread(Work& work);

  // Run a node, and add nodes that become ready to `work`.
  void RunNode(int index, Work& work);
  void Compute(int index, Work& work);
  void Send(int index, Work& work);
  void IssueReceive(int index, Work& work);
  void IssueCollective(int index, Work& work);
  // Marks a receive as issued; continues with its result if it has already completed.
  void WhenIssued(int index, Work& work);
  void FinishReceive(int index, Work& work);
  void OnReceived(int index, absl::Status status, Received received);
  void Propagate(int index, absl::Span<Tensor> outputs, bool is_dead, Work& work);
  // The node is done, and `ready` others were made ready.
  void Leave(int ready);

  bool IsDead(int index) const;
  // True if it probably takes longer than waking a thread.
  bool IsLong(int index) const;
  bool IsKnownToBeShort(int index) const;
  absl::Span<const Tensor> InputsOf(const Plan::Node& node) const;
  void MarkReady(int index, Work& work);
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<StepTransfers> transfers_;
  const GraphRunOptions options_;

  // One per input of each node; written by its producer, read by its consumer.
  std::vector<Tensor> slots_;
  // Per node: number of inputs and dependencies still missing.
  std::unique_ptr<std::atomic<int>[]> pending_;
  // Per node: some input or dependency was dead.
  std::unique_ptr<std::atomic<bool>[]> is_dead_;
  std::unique_ptr<Receive[]> receives_;
  // Written by the thread that runs the node.
  std::vector<NodeTimes> times_;
  // Number of nodes that are ready or running.
  std::atomic<int64_t> outstanding_{0};
  std::atomic<bool> has_failed_{false};
  CancellationToken cancellation_;

  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool is_finished_ ABSL_GUARDED_BY(mu_) = false;
  // Set until Finish takes it.
  Done done_;
  std::shared_ptr<GraphRun> self_;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_GRAPH_RUN_H_
