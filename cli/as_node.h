// SPDX-License-Identifier: Apache-2.0
// Verbs that act as a node of a job: worker, send, recv.
#ifndef FERRY_CLI_AS_NODE_H_
#define FERRY_CLI_AS_NODE_H_

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cli/interruptible.h"
#include "cli/signals.h"
#include "node/node.h"

namespace ferry::cli {

// The state of a verb that has joined.
struct JoinedNode {
  Node& node;
  // SIGINT, SIGTERM and SIGHUP, blocked.
  BlockedSignals& signals;
  const JobError& error;
  // This process runs the coordinator, because the launcher names none.
  bool hosts_coordinator = false;
  // For RunAsPeer: this node has done all that other nodes wait for.
  bool is_served = false;
};

// Adds --coordinator, --node-id, --num-nodes, --recoverable and the timeouts.
//   options: must outlive `app`.
void AddIdentityFlags(CLI::App& app, NodeOptions& options);
// Adds those, and those of AddTransferFlags.
void AddNodeFlags(CLI::App& app, NodeOptions& options);

// Calls ResolveNodeIdentity with this process's environment. On failure prints the error, and
// reports it to the other processes of the job if FindRefusedNode knows them; node 0 runs the
// coordinator to do so, if that was its role.
absl::StatusOr<NodeIdentity> FindOwnIdentity(const NodeOptions& options);

// Runs `prepare`, the part of a verb before it joins. If that fails in a launched process whose
// coordinator is at node 0, fails the job's other processes, as FindOwnIdentity does: the same
// launcher started them, and they are already waiting.
absl::Status PrepareAsNode(const NodeOptions& options,
                           const std::function<absl::Status()>& prepare);

// Joins as the node given by the flags or the environment, prints on stderr which nodes are
// missing, and runs `body`. A signal during joining cancels it and notifies the coordinator; a
// second one ends the process. If the job has no coordinator, node 0 runs one, until all other
// nodes have left; TensorFlow clients can use it if the node runs graphs.
//   heartbeat_timeout: for the coordinator it runs; nullopt uses FindHeartbeatTimeout.
//   Errors: those of ResolveNodeIdentity, Join and `body`; the job's error where that is more
//   specific.
absl::StatusOr<int> RunAsNode(NodeOptions& options,
                              const std::function<absl::StatusOr<int>(JoinedNode&)>& body,
                              std::optional<absl::Duration> heartbeat_timeout = std::nullopt);

// Like RunAsNode, for a node that others wait for and that leaves at the end. If `body` fails
// before EndService, fails the job with the reason at once; after that, the other nodes continue.
absl::StatusOr<int> RunAsPeer(NodeOptions& options,
                              const std::function<absl::StatusOr<int>(JoinedNode&)>& body);

// Call when other nodes no longer wait for this one: leaves the job. Whatever follows, such as
// printing, can fail alone and be ended by signals.
void EndService(JoinedNode& joined);

// Like the function above, with the node's signals and job error.
inline absl::Status RunInterruptibly(JoinedNode& joined, const std::function<absl::Status()>& work,
                                     const std::function<void(const absl::Status&)>& stop) {
  return RunInterruptibly(joined.signals, joined.error, work, stop);
}

}  // namespace ferry::cli

#endif  // FERRY_CLI_AS_NODE_H_
