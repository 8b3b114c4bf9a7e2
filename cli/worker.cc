// SPDX-License-Identifier: Apache-2.0
// ferry worker: joins a job and stays until it is stopped, or the job fails.
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "base/status_macros.h"
#include "cli/as_node.h"
#include "cli/progress.h"
#include "cli/summary.h"
#include "cli/verb.h"
#include "launch/printable.h"
#include "tensorflow/node_worker/node_worker.h"

namespace ferry::cli {
namespace {

struct WorkerFlags {
  bool exit_after_join = false;
  std::optional<absl::Duration> heartbeat_timeout;
  bool runs_graphs = true;
  GraphOptions graphs;
  NodeOptions node;
};

absl::StatusOr<int> Stay(JoinedNode& joined) {
  while (joined.error.Get().ok()) {
    const std::optional<int> signal = joined.signals.WaitFor(absl::InfiniteDuration());
    if (!signal) continue;
    std::fprintf(stderr, "ferry worker: node %d is leaving (%s)\n", joined.node.node_id(),
                 SignalName(*signal));
    FERRY_RETURN_IF_ERROR(joined.node.Leave());
    return kDone;
  }
  // The job has failed; the next one can begin once its nodes have left.
  joined.node.Leave().IgnoreError();
  return absl::AbortedError(
      absl::StrCat("node ", joined.node.node_id(), ": ", joined.error.Get().message()));
}

absl::StatusOr<int> Work(JoinedNode& joined, bool exit_after_join) {
  Node& node = joined.node;
  const NodeIdentity& identity = node.identity();
  std::printf("ferry worker: %s joined at %s%s; %s; topology %s\n",
              Printable(identity.description).c_str(), Printable(identity.coordinator).c_str(),
              joined.hosts_coordinator ? " (run by this process)" : "",
              Printable(Summarize(node.topology())).c_str(), TopologyHash(node.topology()).c_str());
  if (const std::string address = node.service_address(); !address.empty()) {
    std::printf("ferry worker: tensorflow.WorkerService at %s\n",
                Printable(absl::StrReplaceAll(address, {{",", ", "}})).c_str());
  }
  std::fflush(stdout);
  if (!exit_after_join) return Stay(joined);
  const Progress progress("waiting for the other nodes to leave as well");
  std::atomic<bool> is_stopped = false;
  const absl::Status together = RunInterruptibly(
      joined,
      [&node, &is_stopped] {
        const absl::Status status = node.Shutdown();
        // After a signal, a failure of the collective shutdown is its consequence.
        return status.ok() || !is_stopped ? status : absl::CancelledError(status.message());
      },
      // Notify the other nodes that this one will not shut down together with them.
      [&node, &is_stopped](const absl::Status& why) {
        is_stopped = true;
        node.FailJob(why);
      });
  if (together.ok()) return kDone;
  node.Leave().IgnoreError();
  return together;
}

}  // namespace

Verb AddWorkerVerb(CLI::App& app) {
  auto flags = std::make_shared<WorkerFlags>();
  CLI::App& verb = *app.add_subcommand(
      "worker", "Join a job with this machine's devices, and run until terminated");
  verb.footer(
      "Without flags, the identity comes from the environment of the launcher nearest to the\n"
      "process: FERRY_*, torchrun, Open MPI, MVAPICH, MPICH and Intel MPI, PRRTE, Slurm,\n"
      "TF_CONFIG, Kubernetes indexed jobs. --node-id and --coordinator resolve contradictions.\n"
      "`srun ferry worker` needs nothing else: node 0 then runs the coordinator as well.");
  verb.add_flag("--exit-after-join", flags->exit_after_join,
                "leave, together with all others, once everyone has joined");
  AddHeartbeatTimeout(verb, flags->heartbeat_timeout);
  AddNodeFlags(verb, flags->node);
  constexpr char kGroup[] = "Graphs";
  verb.add_flag_callback(
          "--no-graphs", [flags] { flags->runs_graphs = false; },
          "run no graphs of TensorFlow's clients, and listen on no port for them")
      ->group(kGroup);
  verb.add_option("--graph-listen", flags->node.transfer.grpc_listen,
                  "listen address of tensorflow.WorkerService; port 0: any free port; without HOST "
                  "all addresses")
      ->type_name("[HOST]:PORT")
      ->default_str(flags->node.transfer.grpc_listen)
      ->group(kGroup);
  AddNumber(verb, "--graph-threads", flags->graphs.thread_count,
            "nodes of graphs that run at the same time; 0: as many as there are processors", 0,
            1024)
      ->group(kGroup);
  worker::WorkerLimits& limits = flags->graphs.limits;
  AddLimit(verb, "--trace-steps", limits.trace_runs, "steps kept for ferry trace; 0: none", 0,
           100'000)
      ->group(kGroup);
  AddLimit(verb, "--max-sessions", limits.max_sessions, "sessions of masters")->group(kGroup);
  AddLimit(verb, "--max-graphs", limits.max_graphs, "registered graphs of a session")
      ->group(kGroup);
  AddLimit(verb, "--max-graph-steps", limits.max_steps, "open steps of graphs")->group(kGroup);
  AddLimit(verb, "--max-constant-bytes", limits.max_constant_bytes,
           "constants of all graphs together")
      ->group(kGroup);
  AddLimit(verb, "--max-feed-bytes", limits.max_feed_bytes,
           "clients' feeds of all open steps together")
      ->group(kGroup);
  return [flags]() {
    if (flags->runs_graphs) flags->node.service = ServeGraphs(flags->graphs);
    return RunAsNode(
        flags->node, [&flags](JoinedNode& joined) { return Work(joined, flags->exit_after_join); },
        flags->heartbeat_timeout);
  };
}

}  // namespace ferry::cli
