// SPDX-License-Identifier: Apache-2.0
// Shared code of the ferry bench verbs that measure jobs of many simulated nodes.
#ifndef FERRY_BENCH_NODES_H_
#define FERRY_BENCH_NODES_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"

#include "bench/joined.h"
#include "bench/output.h"
#include "bench/plan_flags.h"
#include "bench/processes.h"
#include "bench/report.h"
#include "cli/verb.h"

namespace ferry::cli {

// A benchmark with one row per number of nodes.
struct NodesBench {
  // The verb, and its description.
  std::string name;
  std::string description;
  // For the report: see BenchReport.
  std::string subject;
  std::string time;
  std::string errors_of;
  // Defaults of --nodes and --iters; an iteration is one of `iterations_of`.
  std::string nodes;
  int iterations = 1;
  int most_iterations = 1;
  std::string iterations_of;
  // Runs it in an existing job, with the iterations in the plan. Null: `why_own_job` says why it
  // cannot.
  std::function<absl::StatusOr<int>(BenchPlanFlags& flags, BenchJoinFlags& join,
                                    const BenchOutput& output)>
      join;
  std::string why_own_job;
  // Measures one number of nodes, and the baseline.
  //   floor_server: serves raw gRPC calls. stage: watches other processes that are started.
  std::function<absl::StatusOr<BenchRow>(int nodes, int iterations, const BenchServer& floor_server,
                                         BenchStage& stage)>
      measure;
};

// Returns a row with the fields common to such benchmarks.
BenchRow NodesBenchRow(const std::string& mode, int nodes, int iterations);

Verb AddNodesBench(CLI::App& bench, NodesBench what);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_NODES_H_
