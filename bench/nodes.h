// SPDX-License-Identifier: Apache-2.0
// What the verbs of ferry bench have in common that measure jobs of many simulated nodes.
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

// A benchmark with one row for each number of nodes.
struct NodesBench {
  // The verb, and what people are told of it.
  std::string name;
  std::string description;
  // Of the report: see BenchReport.
  std::string subject;
  std::string time;
  std::string errors_of;
  // What --nodes and --iters are unless they are given; an iteration is one of `iterations_of`.
  std::string nodes;
  int iterations = 1;
  int most_iterations = 1;
  std::string iterations_of;
  // As part of a job that is there already, with the iterations in the plan. Without it: why it is
  // of none.
  std::function<absl::StatusOr<int>(BenchPlanFlags& flags, BenchJoinFlags& join,
                                    const BenchOutput& output)>
      join;
  std::string why_own_job;
  // Fills in the times of one number of nodes, and of the floor measured beside them.
  //   floor_server: answers raw calls of gRPC. stage: watches what else is started.
  std::function<absl::StatusOr<BenchRow>(int nodes, int iterations, const BenchServer& floor_server,
                                         BenchStage& stage)>
      measure;
};

// A row of such a benchmark, with what all of them say.
BenchRow NodesBenchRow(const std::string& mode, int nodes, int iterations);

Verb AddNodesBench(CLI::App& bench, NodesBench what);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_NODES_H_
