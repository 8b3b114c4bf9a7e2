// SPDX-License-Identifier: Apache-2.0
// --nodes, the baseline's server, progress and the report.
#include "bench/nodes.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/usable_resources.h"
#include "bench/members.h"
#include "bench/plan.h"
#include "cli/progress.h"
#include "cli/transfer_flags.h"

namespace ferry::cli {
namespace {

struct NodesFlags {
  std::string nodes;
  int iterations = 1;
  BenchOutput output;
  // For an existing job.
  BenchJoinFlags join;
  BenchPlanFlags plan;
  // True if --nodes was given.
  std::function<bool()> names_nodes;
};

absl::StatusOr<BenchReport> MeasureAllNodes(const NodesBench& what, int iterations,
                                            const std::vector<int>& nodes) {
  BenchStage stage("starting");
  const Progress progress([&stage] { return stage.Get(); });
  FERRY_ASSIGN_OR_RETURN(const BenchServer floor,
                         StartBenchServer("the floor's server", {"bench-floor"}, stage));
  BenchReport report;
  report.bench = what.name;
  report.subject = what.subject;
  report.time = what.time;
  report.errors_of = what.errors_of;
  report.transport = "control stream";
  report.moves_tensors = false;
  report.cores = Usable().processors;
  for (const int each : nodes) {
    stage.Set(absl::StrCat("measuring ", what.iterations_of, " of ", each, " nodes"));
    FERRY_ASSIGN_OR_RETURN(BenchRow row, what.measure(each, iterations, floor, stage));
    report.rows.push_back(std::move(row));
  }
  return report;
}

absl::StatusOr<int> RunNodesBench(const NodesBench& what, NodesFlags flags) {
  if (flags.join.joins()) {
    if (flags.names_nodes()) {
      return absl::InvalidArgumentError(
          "--nodes: the job determines the nodes; select some of them with --node-list");
    }
    flags.plan.plan.pattern = what.name;
    flags.plan.plan.iterations = flags.iterations;
    return what.join(flags.plan, flags.join, flags.output);
  }
  FERRY_ASSIGN_OR_RETURN(const std::vector<int> nodes, ParseNodesFlag(flags.nodes));
  // Each node needs a connection to the coordinator and one to the baseline's server.
  FERRY_RETURN_IF_ERROR(CheckFileLimit(2 * *std::max_element(nodes.begin(), nodes.end())));
  return FinishBench(MeasureAllNodes(what, flags.iterations, nodes), flags.output);
}

}  // namespace

BenchRow NodesBenchRow(const std::string& mode, int nodes, int iterations) {
  BenchRow row;
  row.mode = mode;
  row.nodes = nodes;
  row.tensors = 0;
  row.path = "control stream";
  row.count = iterations;
  return row;
}

Verb AddNodesBench(CLI::App& bench, NodesBench what) {
  auto flags = std::make_shared<NodesFlags>();
  flags->nodes = what.nodes;
  flags->iterations = what.iterations;
  CLI::App& verb = *bench.add_subcommand(what.name, what.description);
  verb.add_option("--nodes", flags->nodes, "FIRST:LAST:xFACTOR, or a list such as 2,16,64")
      ->type_name("COUNTS")
      ->capture_default_str();
  AddNumber(verb, "--iters", flags->iterations,
            absl::StrCat(what.iterations_of, " of each number of nodes"), 1, what.most_iterations);
  AddBenchOutputFlags(verb, flags->output, BenchMoves::kNothing);
  flags->names_nodes = [&verb] { return verb.count("--nodes") > 0; };
  if (what.join == nullptr) {
    RefuseBenchJoin(verb, what.why_own_job);
  } else {
    AddBenchJoinFlags(verb, flags->join);
    AddTransferFlags(verb, flags->plan.transfer);
  }
  return [flags, what = std::move(what)]() { return RunNodesBench(what, *flags); };
}

}  // namespace ferry::cli
