// SPDX-License-Identifier: Apache-2.0
// Verbs that are a node of a job while they run: worker, send, recv.
#ifndef FERRY_CLI_AS_NODE_H_
#define FERRY_CLI_AS_NODE_H_

#include <functional>
#include <optional>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cli/signals.h"
#include "cli/stoppable.h"
#include "node/node.h"

namespace ferry::cli {

// What a verb has once it is a node.
struct JoinedNode {
  Node& node;
  // SIGINT, SIGTERM and SIGHUP.
  BlockedSignals& signals;
  const JobError& error;
  // The coordinator is in this process, because the launcher names none.
  bool hosts_coordinator = false;
  // Of RunAsPeer: what the others wait for from this node is done.
  bool is_served = false;
};

// --coordinator, --node-id, --num-nodes, --recoverable and the timeouts.
//   options: outlives `app`.
void AddPlaceFlags(CLI::App& app, NodeOptions& options);
// Those, and those of AddExchangeFlags.
void AddNodeFlags(CLI::App& app, NodeOptions& options);

// ResolveNodeIdentity in this process's environment. One that is refused says so on stderr and
// tells the other processes of its job, if FindRefusedNode knows of them; node 0, which was to run
// the coordinator, runs it for that.
absl::StatusOr<NodeIdentity> FindOwnPlace(const NodeOptions& options);

// Runs `prepare`, the part of a verb before it joins. If that fails in a process that a launcher
// has started, and that looks for the coordinator at node 0, the other processes fail as by
// FindOwnPlace: the same launcher has started them, and they wait already.
absl::Status PrepareAsNode(const NodeOptions& options,
                           const std::function<absl::Status()>& prepare);

// Joins as the node that the flags or the environment say, says on stderr whom it waits for, and
// runs `body`. A signal while it joins ends that, and the coordinator is told; a second one ends
// the process. Node 0 of a job without a coordinator runs one, which ends when all others have
// left; TensorFlow's clients can use it if the node runs graphs.
//   heartbeat_timeout: that of the coordinator that it runs; nullopt uses FindHeartbeatTimeout.
//   Errors: those of ResolveNodeIdentity, of Join and of `body`; the job's error where that says
//   more.
absl::StatusOr<int> RunAsNode(NodeOptions& options,
                              const std::function<absl::StatusOr<int>(JoinedNode&)>& body,
                              std::optional<absl::Duration> heartbeat_timeout = std::nullopt);

// As RunAsNode, for a node that others wait for, and leaves in the end. If `body` fails before it
// has served them they hear why at once, and the job is over; otherwise they go on.
absl::StatusOr<int> RunAsPeer(NodeOptions& options,
                              const std::function<absl::StatusOr<int>(JoinedNode&)>& body);

// What the others wait for from this node is done: it leaves, and what is still to do, such as to
// print, fails alone and can be ended by signals.
void EndService(JoinedNode& joined);

// As the other one, for as long as the node is there.
inline absl::Status RunStoppably(JoinedNode& joined, const std::function<absl::Status()>& work,
                                 const std::function<void(const absl::Status&)>& stop) {
  return RunStoppably(joined.signals, joined.error, work, stop);
}

}  // namespace ferry::cli

#endif  // FERRY_CLI_AS_NODE_H_
