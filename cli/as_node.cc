// SPDX-License-Identifier: Apache-2.0
// Joins a job, and handles signals and job errors while a verb runs.
#include "cli/as_node.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/cancellation_token.h"
#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "cli/attempt_failure.h"
#include "cli/hosted_coordinator.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/refusal.h"
#include "cli/transfer_flags.h"
#include "cli/verb.h"

namespace ferry::cli {
namespace {

// Node 0, if it hosts the coordinator, waits this long for the other nodes to leave.
constexpr absl::Duration kOthersTimeout = absl::Seconds(10);
constexpr absl::Duration kOthersAfterSignal = absl::Milliseconds(400);
// In a larger job only node 0 queries the missing nodes: if every node did, the coordinator would
// be loaded at the very time when all join.
constexpr int kMaxCuriousNodes = 64;

// Progress text such as "waiting for nodes 2-3 to join". Used on one thread, except Stop.
class JoinReport final {
 public:
  // `hosted`: see WhereHosted.
  JoinReport(NodeIdentity node_identity, std::string hosted)
      : identity_(std::move(node_identity)), hosted_(std::move(hosted)) {}

  std::string Text() {
    if (agent_ == nullptr) {
      AttemptFailure failure;
      coord::AgentOptions options;
      options.coordinator = identity_.coordinator;
      options.on_attempt_failed = failure.Writer();
      options.connect_stop = stop_;
      // Short, because the end of joining waits for this attempt.
      options.connect_timeout = absl::Milliseconds(500);
      options.reconnect_timeout = absl::Milliseconds(500);
      options.answer_timeout = absl::Seconds(2);
      absl::StatusOr<std::unique_ptr<coord::Agent>> agent =
          coord::Agent::Connect(std::move(options));
      if (!agent.ok()) {
        return absl::StrCat("waiting for the coordinator at ", identity_.coordinator, hosted_,
                            failure.Text());
      }
      agent_ = *std::move(agent);
    }
    const bool may_ask = identity_.node_id == 0 || agent_->num_nodes() <= kMaxCuriousNodes;
    if (!may_ask) return absl::StrCat("waiting for all ", agent_->num_nodes(), " nodes to join");
    const absl::StatusOr<coord::JobStatus> status = agent_->Status();
    if (!status.ok()) {
      // It may be unreachable by now: reconnect next time.
      agent_ = nullptr;
      return absl::StrCat("waiting for the other nodes to join; the coordinator at ",
                          identity_.coordinator, " does not answer");
    }
    std::vector<int> missing;
    for (const coord::TaskStatus& task : status->tasks) {
      const bool is_there = task.state == coord::TaskState::kConnected || task.is_joining;
      const bool is_self = task.node_id == identity_.node_id;
      if (!is_there && !is_self) missing.push_back(task.node_id);
    }
    if (missing.empty()) return "waiting for the devices of the other nodes";
    return absl::StrCat("waiting for node", missing.size() == 1 ? " " : "s ",
                        FormatRanges(missing, 200), " to join");
  }

  // Cancels a pending attempt to connect to the coordinator. Callable from any thread.
  void Stop() { stop_->Cancel(absl::CancelledError("the wait is over")); }

 private:
  const NodeIdentity identity_;
  const std::string hosted_;
  const std::shared_ptr<CancellationToken> stop_ = std::make_shared<CancellationToken>();
  std::unique_ptr<coord::Agent> agent_;
};

// Describes a coordinator whose address was derived, for messages about waiting for it: that node 0
// runs it, and where it listens if this is node 0. Empty if the address was given explicitly, since
// its host is then unknown.
std::string WhereHosted(const NodeIdentity& node_identity, const HostedCoordinator* hosted) {
  if (hosted != nullptr) {
    return absl::StrCat(", which is this process itself, listening on ", hosted->address());
  }
  return node_identity.is_derived ? ", which node 0 runs" : "";
}

// Returns the job of a process that could not join as `node_identity`.
RefusedJob JobOf(const RefusedNode& node_identity, const NodeOptions& options) {
  const int nodes = node_identity.num_nodes.value_or(1);
  return {.nodes = nodes, .others = nodes - 1, .timeout = LateNodeTimeout(options.connect_timeout)};
}

absl::Status ReportToOthers(const RefusedNode& node_identity, const absl::Status& why,
                            const NodeOptions& options) {
  return ReportToOthers(node_identity, why, JobOf(node_identity, options));
}

// Joins on a thread of its own, because it may take minutes, and signals must be handled.
absl::StatusOr<std::unique_ptr<Node>> Join(NodeOptions options, const NodeIdentity& node_identity,
                                           const std::string& hosted, BlockedSignals& signals) {
  JoinReport report(node_identity, hosted);
  const Progress progress([&report] { return report.Text(); });
  const std::shared_ptr<CancellationToken> stop = options.connect_stop;
  absl::Status stopped;
  std::atomic<bool> is_over = false;
  absl::StatusOr<std::unique_ptr<Node>> joined;
  {
    Thread joiner("ferry-join", [&, options = std::move(options)]() mutable {
      joined = Node::Join(std::move(options));
      is_over = true;
      signals.Wake();
    });
    std::unique_ptr<Thread> stopper;
    while (!is_over) {
      const std::optional<int> signal = signals.WaitFor(absl::InfiniteDuration());
      if (!signal || is_over) continue;
      const std::string why = absl::StrCat("stopped by ", SignalName(*signal), " while ",
                                           node_identity.description, " was joining");
      if (stopper == nullptr) {
        // On a thread, because cancelling notifies the coordinator, which may take seconds.
        stopped = absl::CancelledError(why);
        stopper =
            std::make_unique<Thread>("ferry-stop", [&stop, &stopped] { stop->Cancel(stopped); });
        continue;
      }
      // A second signal: end at once.
      std::fprintf(stderr, "ferry: %s\n", why.c_str());
      std::fflush(nullptr);
      _exit(kFailed);
    }
  }
  report.Stop();
  if (stopped.ok() || !joined.ok()) return joined;
  // The signal arrived after joining had completed.
  (*joined)->FailJob(stopped);
  return stopped;
}

}  // namespace

void AddIdentityFlags(CLI::App& app, NodeOptions& options) {
  // Not AddCoordinatorFlag: ResolveNodeIdentity reads FERRY_COORDINATOR itself, and reports the
  // source of the value.
  app.add_option_function<std::string>(
         "--coordinator",
         [&options](const std::string& address) {
           const absl::Status status = CheckAddress("", address);
           if (!status.ok()) {
             throw CLI::ValidationError("--coordinator",
                                        std::string(absl::StripPrefix(status.message(), ": ")));
           }
           options.coordinator = address;
         },
         "where the coordinator listens")
      ->type_name("HOST:PORT");
  AddNumber(app, "--node-id", options.node_id, "id of this node, from 0", 0,
            std::numeric_limits<int>::max())
      ->type_name("I");
  AddNumber(app, "--num-nodes", options.num_nodes, "number of nodes", 1, 1000000);
  app.add_flag("--recoverable", options.recoverable,
               "this node may die and come back without failing the job");
  app.add_flag("--share-gpus", options.share_gpus,
               "other nodes may use this node's GPUs; set it on all of them");
  AddDuration(app, "--connect-timeout", options.connect_timeout,
              "how long to wait for the coordinator and the other nodes");
  AddDuration(app, "--enumerate-timeout", options.enumerate_timeout,
              "how long to wait for the devices of the other nodes");
  AddDeprecatedName(app,
                    AddDuration(app, "--reconnect-timeout", options.reconnect_timeout,
                                "how long the coordinator may be unreachable; 0: its heartbeat "
                                "timeout"),
                    "--lost-timeout");
}

void AddNodeFlags(CLI::App& app, NodeOptions& options) {
  AddIdentityFlags(app, options);
  AddTransferFlags(app, options.transfer);
}

absl::StatusOr<int> RunAsNode(NodeOptions& options,
                              const std::function<absl::StatusOr<int>(JoinedNode&)>& body,
                              std::optional<absl::Duration> heartbeat_timeout) {
  // Before signals are blocked: a process that fails here has nothing to clean up.
  FERRY_ASSIGN_OR_RETURN(const NodeIdentity node_identity, FindOwnIdentity(options));
  const bool is_host = node_identity.is_derived && node_identity.node_id == 0;
  if (is_host) {
    const auto found = FindHeartbeatTimeout(heartbeat_timeout);
    if (!found.ok()) {
      return ReportToOthers(AsRefused(node_identity), found.status(), options);
    }
    heartbeat_timeout = *found;
  }
  BlockedSignals signals({SIGINT, SIGTERM, SIGHUP}, EndAfterSignal());
  std::unique_ptr<HostedCoordinator> hosted;
  if (is_host) {
    const Graphs graphs = options.service != nullptr ? Graphs::kServed : Graphs::kNone;
    auto listening = HostedCoordinator::At(node_identity.coordinator, *node_identity.num_nodes,
                                           graphs, heartbeat_timeout);
    if (!listening.ok()) return WhyNotListening(node_identity.coordinator, listening.status());
    hosted = *std::move(listening);
  }
  JobError error(signals);
  options.on_error = [&error](absl::Status status) { error.Set(std::move(status)); };
  const std::string where = WhereHosted(node_identity, hosted.get());
  absl::StatusOr<std::unique_ptr<Node>> node = Join(options, node_identity, where, signals);
  const auto let_others_leave = [&hosted, &signals, &options] {
    if (hosted == nullptr) return;
    if (signals.have_come()) {
      // The launcher most likely sent the signal to all nodes.
      hosted->WaitUntilAllLeft(kOthersAfterSignal, &signals);
    } else {
      hosted->WaitUntilAllLeft(kOthersTimeout, &signals, LateNodeTimeout(options.connect_timeout));
    }
  };
  if (!node.ok()) {
    let_others_leave();
    // The job's error is more specific than that of the call it cancelled.
    const absl::Status status = error.Get().ok() ? node.status() : error.Get();
    const bool is_out_of_reach = absl::IsDeadlineExceeded(status) ||
                                 absl::StrContains(status.message(), node_identity.coordinator);
    if (where.empty() || !is_out_of_reach) return status;
    return absl::Status(status.code(), absl::StrCat(status.message(), "; the coordinator is at ",
                                                    node_identity.coordinator, where));
  }
  JoinedNode joined{**node, signals, error, hosted != nullptr};
  absl::StatusOr<int> status = body(joined);
  let_others_leave();
  return status;
}

absl::StatusOr<NodeIdentity> FindOwnIdentity(const NodeOptions& options) {
  absl::StatusOr<NodeIdentity> node_identity = ResolveNodeIdentity(options, ProcessEnv);
  if (node_identity.ok()) return node_identity;
  const std::optional<RefusedNode> refused = FindRefusedNode(options, ProcessEnv);
  if (!refused.has_value()) return node_identity;
  return ReportToOthers(*refused, node_identity.status(), options);
}

absl::Status PrepareAsNode(const NodeOptions& options,
                           const std::function<absl::Status()>& prepare) {
  absl::Status status = prepare();
  if (status.ok() || IsErrorPrinted(status)) return status;
  const absl::StatusOr<NodeIdentity> node_identity = ResolveNodeIdentity(options, ProcessEnv);
  if (!node_identity.ok() || !node_identity->is_derived) return status;
  return ReportToOthers(AsRefused(*node_identity), status, options);
}

void EndService(JoinedNode& joined) {
  joined.is_served = true;
  // The coordinator may be gone already.
  joined.node.Leave().IgnoreError();
  joined.signals.Unblock();
}

absl::StatusOr<int> RunAsPeer(NodeOptions& options,
                              const std::function<absl::StatusOr<int>(JoinedNode&)>& body) {
  return RunAsNode(options, [&body](JoinedNode& joined) {
    absl::StatusOr<int> done = body(joined);
    if (joined.is_served) return done;
    if (done.ok() || !joined.error.Get().ok()) {
      EndService(joined);
    } else {
      joined.node.FailJob(done.status());
    }
    return done;
  });
}

}  // namespace ferry::cli
