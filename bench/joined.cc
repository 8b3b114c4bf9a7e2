// SPDX-License-Identifier: Apache-2.0
// Joining, synchronisation, and output on the first node.
#include "bench/joined.h"

#include <cstdio>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/usable_resources.h"
#include "bench/offer.h"
#include "bench/paths.h"
#include "bench/worker.h"
#include "cli/as_node.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "cli/version.h"

namespace ferry::cli {
namespace {

constexpr size_t kSubjectBytes = 60;
// Bounds the engine's limits when only the coordinator knows the number of nodes.
constexpr int kMostJobNodes = 64;

BenchReport BlankReport(const BenchPlanFlags& flags, const JoinedBench& what,
                        const BenchParticipants& party) {
  std::set<std::string> hosts;
  for (const LocalTopology& node : party.node.topology().nodes()) {
    for (const int id : party.nodes) {
      if (node.node_id == id) hosts.insert(node.boot_id);
    }
  }
  BenchReport report;
  report.bench = flags.plan.pattern;
  report.subject = absl::StrCat("nodes ", FormatRanges(party.nodes, kSubjectBytes),
                                " of the job at ", party.node.identity().coordinator, " on ",
                                Count(static_cast<long long>(hosts.size()), "host"));
  report.time = what.time;
  report.transport = flags.transport;
  report.is_polling = flags.plan.is_polling;
  report.is_sleeping = flags.plan.is_sleeping;
  report.cores = Usable().processors;
  return report;
}

absl::StatusOr<int> TakePart(JoinedNode& joined, const BenchPlanFlags& flags,
                             const BenchJoinFlags& join, const BenchOutput& output,
                             const JoinedBench& what) {
  Node& node = joined.node;
  absl::StatusOr<std::vector<int>> nodes = NodesOfBench(
      flags.plan.pattern, join.node_list, node.num_nodes(), node.node_id(), what.nodes);
  if (!nodes.ok()) {
    node.Leave().IgnoreError();
    return nodes.status();
  }
  BenchStage stage("starting the bench");
  StoreSync meeting(node,
                    {.node = node.node_id(),
                     .incarnation = node.agent().incarnation(),
                     .version = kVersion,
                     .flags = FlagsOfPlan(flags.plan, flags.transport, *nodes)},
                    *nodes, join.timeout, stage);
  absl::StatusOr<BenchReport> report = BlankReport(flags, what, meeting.party());
  {
    const Progress progress([&stage] { return stage.Get(); });
    const absl::Status measured = RunInterruptibly(
        joined,
        [&]() -> absl::Status {
          absl::Status status = meeting.Gather();
          if (status.ok()) {
            status = what.work ? what.work(meeting, flags.plan)
                               : RunBenchWork(meeting.party(), meeting, flags.plan);
          }
          return meeting.Finish(std::move(status));
        },
        [&meeting](const absl::Status& why) { meeting.Stop(why); });
    if (!measured.ok()) report = measured;
    // Leave only: the job's other nodes continue, whatever the outcome of the bench.
    const absl::Status left = node.Leave();
    if (report.ok() && !left.ok()) report = left;
  }
  if (report.ok() && !meeting.party().is_first()) {
    if (!output.json && !output.csv) {
      std::printf("ferry bench %s: node %d is through; node %d has the rows\n",
                  flags.plan.pattern.c_str(), node.node_id(), nodes->front());
    }
    return kDone;
  }
  if (report.ok()) {
    KeptBenchLines lines(meeting.TakeLines());
    const absl::Status read = what.read(static_cast<int>(nodes->size()), lines, *report);
    if (!read.ok()) report = read;
  }
  return FinishBench(report, output);
}

}  // namespace

void AddBenchJoinFlags(CLI::App& verb, BenchJoinFlags& flags) {
  verb.add_flag(
      "--join", flags.is_meant,
      "be a node of the job that the environment names (ferry run, srun, mpirun), as with "
      "--coordinator or --node-id");
  AddDeprecatedName(verb,
                    verb.add_option("--node-list", flags.node_list,
                                    "which nodes of the job take part, such as 0-3,7; all")
                        ->type_name("NODES"),
                    "--among");
  AddDuration(
      verb, "--timeout", flags.timeout,
      "how long to wait for another node of the bench; if it is given, for all nodes of the "
      "job to join too, unless --connect-timeout is");
  AddIdentityFlags(verb, flags.node);
  verb.footer(
      "Without --coordinator, --node-id and --join it starts its processes itself. Between "
      "machines, "
      "I from 0 on:\n"
      "  ferry coordinator --nodes=N\n"
      "  ferry bench " +
      verb.get_name() + " --coordinator=HOST:9470 --num-nodes=N --node-id=I");
  verb.parse_complete_callback([&verb, &flags] {
    if (verb.count("--timeout") == 0) return;
    if (verb.count("--connect-timeout") == 0) flags.node.connect_timeout = flags.timeout;
    if (verb.count("--enumerate-timeout") == 0) flags.node.enumerate_timeout = flags.timeout;
  });
}

void RefuseBenchJoin(CLI::App& verb, const std::string& why) {
  verb.add_option_function<std::string>(
          "--coordinator",
          [why](const std::string&) { throw CLI::ValidationError("--coordinator", why); })
      ->group("");
}

absl::StatusOr<int> RunJoinedBench(BenchPlanFlags& flags, BenchJoinFlags& join,
                                   const BenchOutput& output, const JoinedBench& what) {
  FERRY_RETURN_IF_ERROR(PrepareAsNode(join.node, [&]() -> absl::Status {
    if (flags.transport == kAllTransports) {
      if (flags.names_transport()) {
        return absl::InvalidArgumentError(
            "--transport=all: a node of a job has joined it with the transports that it has; say "
            "one of them, and start again for each");
      }
      flags.transport = "auto";
    }
    FERRY_ASSIGN_OR_RETURN(const NodeIdentity node_identity, FindOwnIdentity(join.node));
    const int nodes = what.nodes > 0 ? what.nodes : node_identity.num_nodes.value_or(kMostJobNodes);
    return CompletePlan(flags, static_cast<size_t>(nodes), what.depth);
  }));
  // The TCP baseline is for two processes.
  if (flags.plan.pattern != "sendrecv") flags.plan.has_tcp_floor = false;
  join.node.transfer = flags.transfer;
  // Only host memory is transferred.
  join.node.share_gpus = true;
  return RunAsNode(join.node,
                   [&](JoinedNode& joined) { return TakePart(joined, flags, join, output, what); });
}

}  // namespace ferry::cli
