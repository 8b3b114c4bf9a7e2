// SPDX-License-Identifier: Apache-2.0
// Verbs that are a node of a job while they run: worker, send, recv.
#ifndef FERRY_CLI_AS_NODE_H_
#define FERRY_CLI_AS_NODE_H_

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "cli/signals.h"
#include "runtime/node.h"

namespace ferry::cli {

// The first error of the job, from whichever thread. Thread-safe.
class JobError final {
 public:
  explicit JobError(BlockedSignals& signals) : signals_(signals) {}
  // Wakes `signals`.
  void Set(absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Get() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  BlockedSignals& signals_;
  mutable absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

// What a verb has once it is a node.
struct JoinedNode {
  Node& node;
  // SIGINT, SIGTERM and SIGHUP.
  BlockedSignals& signals;
  const JobError& error;
  // The coordinator is in this process, because the launcher names none.
  bool hosts_coordinator = false;
};

// --coordinator, --node-id, --num-nodes, --recoverable and the timeouts.
//   options: outlives `app`.
void AddPlaceFlags(CLI::App& app, NodeOptions& options);
// Those, and those of AddExchangeFlags.
void AddNodeFlags(CLI::App& app, NodeOptions& options);

// Joins as the node that the flags or the environment say, says on stderr whom it waits for, and
// runs `body`. A signal ends the process while it joins. Node 0 of a job without a coordinator runs
// one, which ends when all others have left; TensorFlow's clients can use it if the node runs
// graphs.
//   Errors: those of FindPlace, of Join and of `body`; the job's error where that says more.
absl::StatusOr<int> RunAsNode(NodeOptions& options,
                              const std::function<absl::StatusOr<int>(JoinedNode&)>& body);

// Runs `work` on a thread of its own ("ferry-work"). When a signal comes or the job fails, `stop`
// is called with the reason, and has to make `work` end soon.
//   Errors: those of `work`; the reason why it was stopped if it was.
absl::Status RunStoppably(JoinedNode& joined, const std::function<absl::Status()>& work,
                          const std::function<void(const absl::Status&)>& stop);

}  // namespace ferry::cli

#endif  // FERRY_CLI_AS_NODE_H_
