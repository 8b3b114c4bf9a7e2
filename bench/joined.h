// SPDX-License-Identifier: Apache-2.0
// A ferry bench that runs on the nodes of an existing job, on any machines.
#ifndef FERRY_BENCH_JOINED_H_
#define FERRY_BENCH_JOINED_H_

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "bench/lines.h"
#include "bench/meeting.h"
#include "bench/output.h"
#include "bench/plan_flags.h"
#include "bench/store_sync.h"
#include "node/node.h"

namespace ferry::cli {

struct BenchJoinFlags {
  NodeOptions node;
  // --join: the node's identity comes from the environment.
  bool is_meant = false;
  // The participating nodes; empty: all.
  std::string node_list;
  absl::Duration timeout = kBenchPeerTimeout;

  // True if the bench is part of a job, instead of starting one.
  bool joins() const { return is_meant || !node.coordinator.empty() || node.node_id.has_value(); }
};

// Adds --join, --node-list, --timeout, and those of AddIdentityFlags.
//   flags: must outlive `verb`.
void AddBenchJoinFlags(CLI::App& verb, BenchJoinFlags& flags);
// Adds --coordinator to a bench that rejects it.
//   why: "each of its samples is of a job of its own".
void RefuseBenchJoin(CLI::App& verb, const std::string& why);

// How a bench runs in a job.
struct JoinedBench {
  // Required number of nodes; 0: any number.
  int nodes = 0;
  // Tensors in flight, as in CompletePlan.
  size_t depth = 1;
  // The meaning of its times, see BenchReport.
  std::string time;
  // Each node's part after Gather; null: RunBenchWork.
  std::function<absl::Status(StoreSync& meeting, const BenchPlan& plan)> work;
  // Builds a report's rows from the lines of all nodes.
  std::function<absl::Status(int nodes, BenchLines& lines, BenchReport& report)> read;
};

// Joins, measures together with the other nodes, and leaves; the first node ends as FinishBench.
//   flags: not completed yet.
//   Errors: INVALID_ARGUMENT naming the flag; ABORTED why the bench has ended.
absl::StatusOr<int> RunJoinedBench(BenchPlanFlags& flags, BenchJoinFlags& join,
                                   const BenchOutput& output, const JoinedBench& what);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_JOINED_H_
