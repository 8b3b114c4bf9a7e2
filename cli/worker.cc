// SPDX-License-Identifier: Apache-2.0
// ferry worker: joins a job and stays until it is told to go, or the job fails.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "cli/hosted_coordinator.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "cli/summary.h"
#include "cli/verb.h"
#include "runtime/node.h"
#include "runtime/printable.h"

namespace ferry::cli {
namespace {

// Node 0 with the coordinator inside waits this long for the others to leave before it goes.
constexpr absl::Duration kOthersPatience = absl::Seconds(10);
// In a larger job only node 0 asks who is missing: everyone asking about everyone is a burden on
// the coordinator at the very time when all join.
constexpr int kMaxCuriousNodes = 64;

struct WorkerFlags {
  std::string coordinator;
  std::optional<int> node_id;
  std::optional<int> num_nodes;
  bool exit_after_join = false;
  NodeOptions node;
};

// What happened first, from whichever thread.
class Outcome final {
 public:
  explicit Outcome(BlockedSignals& signals) : signals_(signals) {}

  void SetError(absl::Status error) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (error_.ok()) error_ = std::move(error);
    }
    signals_.Wake();
  }
  void SetJoined(absl::StatusOr<std::unique_ptr<Node>> joined) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      joined_ = std::move(joined);
    }
    signals_.Wake();
  }
  absl::Status error() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return error_;
  }
  // Nothing while Join is under way.
  std::optional<absl::StatusOr<std::unique_ptr<Node>>> TakeJoined() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::exchange(joined_, std::nullopt);
  }

 private:
  BlockedSignals& signals_;
  mutable absl::Mutex mu_;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::StatusOr<std::unique_ptr<Node>>> joined_ ABSL_GUARDED_BY(mu_);
};

// "waiting for nodes 2-3 to join". Used on one thread.
class JoinReport final {
 public:
  explicit JoinReport(NodePlace place) : place_(std::move(place)) {}

  std::string Text() {
    if (agent_ == nullptr) {
      coord::AgentOptions options;
      options.coordinator = place_.coordinator;
      options.connect_timeout = absl::Milliseconds(500);
      absl::StatusOr<std::unique_ptr<coord::Agent>> agent = coord::Agent::Connect(options);
      if (!agent.ok()) {
        return absl::StrCat("waiting for the coordinator at ", place_.coordinator);
      }
      agent_ = *std::move(agent);
    }
    const bool may_ask = place_.node_id == 0 || agent_->num_nodes() <= kMaxCuriousNodes;
    if (!may_ask) return absl::StrCat("waiting for all ", agent_->num_nodes(), " nodes to join");
    const absl::StatusOr<coord::JobStatus> status = agent_->Status();
    if (!status.ok()) return "waiting for the other nodes to join";
    std::vector<int> missing;
    for (const coord::TaskStatus& task : status->tasks) {
      const bool is_there = task.state == coord::TaskState::kConnected || task.is_joining;
      const bool is_self = task.node_id == place_.node_id;
      if (!is_there && !is_self) missing.push_back(task.node_id);
    }
    if (missing.empty()) return "waiting for the devices of the other nodes";
    return absl::StrCat("waiting for node", missing.size() == 1 ? " " : "s ",
                        FormatRanges(missing, 200), " to join");
  }

 private:
  const NodePlace place_;
  std::unique_ptr<coord::Agent> agent_;
};

// Joins, on a thread of its own because it may take minutes and a signal may come.
absl::StatusOr<std::unique_ptr<Node>> Join(NodeOptions options, const NodePlace& place,
                                           BlockedSignals& signals, Outcome& outcome) {
  JoinReport report(place);
  const Progress progress([&report] { return report.Text(); });
  Thread joiner("ferry-join", [&outcome, options = std::move(options)]() mutable {
    outcome.SetJoined(Node::Join(std::move(options)));
  });
  while (true) {
    const std::optional<int> signal = signals.WaitFor(absl::InfiniteDuration());
    if (auto joined = outcome.TakeJoined()) return *std::move(joined);
    if (!signal) continue;
    // There is nothing to leave yet, and no way to call the joining thread back.
    std::fprintf(stderr, "ferry: stopped by %s while %s was joining\n", SignalName(*signal),
                 place.description.c_str());
    std::fflush(nullptr);
    _exit(kFailed);
  }
}

absl::StatusOr<int> Stay(Node& node, BlockedSignals& signals, const Outcome& outcome) {
  while (outcome.error().ok()) {
    const std::optional<int> signal = signals.WaitFor(absl::InfiniteDuration());
    if (!signal) continue;
    std::fprintf(stderr, "ferry worker: node %d is leaving (%s)\n", node.node_id(),
                 SignalName(*signal));
    FERRY_RETURN_IF_ERROR(node.Leave());
    return kDone;
  }
  return absl::Status(absl::StatusCode::kAborted,
                      absl::StrCat("node ", node.node_id(), ": ", outcome.error().message()));
}

absl::StatusOr<int> Work(WorkerFlags& flags) {
  BlockedSignals signals({SIGINT, SIGTERM, SIGHUP});
  NodeOptions& options = flags.node;
  options.coordinator = flags.coordinator;
  options.node_id = flags.node_id;
  options.num_nodes = flags.num_nodes;
  FERRY_ASSIGN_OR_RETURN(const NodePlace place, FindPlace(options, ProcessEnv));
  std::unique_ptr<HostedCoordinator> hosted;
  if (place.is_derived && place.node_id == 0) {
    FERRY_ASSIGN_OR_RETURN(hosted, HostedCoordinator::At(place.coordinator, *place.num_nodes));
  }
  Outcome outcome(signals);
  options.on_error = [&outcome](absl::Status error) { outcome.SetError(std::move(error)); };
  absl::StatusOr<std::unique_ptr<Node>> node = Join(options, place, signals, outcome);
  if (!node.ok()) {
    // The job's error says more than that of the call that it ended.
    return outcome.error().ok() ? node.status() : outcome.error();
  }
  std::printf(
      "ferry worker: %s joined at %s%s; %s; topology %s\n", Printable(place.description).c_str(),
      Printable(place.coordinator).c_str(), hosted != nullptr ? " (run by this process)" : "",
      Printable(Summarize((*node)->topology())).c_str(), TopologyHash((*node)->topology()).c_str());
  std::fflush(stdout);
  if (flags.exit_after_join) {
    const Progress progress("waiting for the other nodes to leave as well");
    FERRY_RETURN_IF_ERROR((*node)->Shutdown());
    return kDone;
  }
  absl::StatusOr<int> status = Stay(**node, signals, outcome);
  if (hosted != nullptr) hosted->WaitUntilAllLeft(kOthersPatience);
  return status;
}

}  // namespace

Verb AddWorkerVerb(CLI::App& app) {
  auto flags = std::make_shared<WorkerFlags>();
  CLI::App& verb = *app.add_subcommand(
      "worker", "Join a job with this machine's devices, and stay until told to go");
  verb.footer(
      "Without flags, who this is comes from the environment: FERRY_*, torchrun, Open MPI, MPICH,\n"
      "Slurm, Kubernetes indexed jobs. `srun ferry worker` needs nothing else: node 0 then runs "
      "the\n"
      "coordinator as well.");
  // Not AddCoordinatorFlag: FindPlace reads FERRY_COORDINATOR, and says where a value came from.
  CLI::Option* coordinator =
      verb.add_option("--coordinator", flags->coordinator, "where the coordinator listens")
          ->type_name("HOST:PORT");
  verb.add_option("--node-id", flags->node_id, "which node this is, from 0")->type_name("I");
  verb.add_option("--num-nodes", flags->num_nodes, "how many there are")
      ->type_name("N")
      ->check(Within(1, 1000000));
  verb.add_flag("--exit-after-join", flags->exit_after_join,
                "leave, together with all others, once everyone has joined");
  verb.add_flag("--recoverable", flags->node.recoverable,
                "this node may die and come back without failing the job");
  AddDuration(verb, "--connect-timeout", flags->node.connect_timeout,
              "how long to wait for the coordinator and the other nodes");
  AddDuration(verb, "--enumerate-timeout", flags->node.enumerate_timeout,
              "how long to wait for the devices of the other nodes");
  AddDuration(verb, "--lost-timeout", flags->node.lost_timeout,
              "how long the coordinator may be out of reach; 0: its heartbeat timeout");
  return [flags, coordinator]() -> absl::StatusOr<int> {
    if (coordinator->count() > 0) {
      FERRY_RETURN_IF_ERROR(CheckAddress("--coordinator", flags->coordinator));
    }
    return Work(*flags);
  };
}

}  // namespace ferry::cli
