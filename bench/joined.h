// SPDX-License-Identifier: Apache-2.0
// A ferry bench whose processes are started by somebody else, on any machines: nodes of a job that
// is there already.
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
  // The place is that of the environment.
  bool is_meant = false;
  // Which nodes of the job take part; empty: all.
  std::string among;
  absl::Duration timeout = kBenchPeerTimeout;

  // Whether the bench is to be part of a job, instead of starting one.
  bool joins() const { return is_meant || !node.coordinator.empty() || node.node_id.has_value(); }
};

// --join, --among, --timeout, and those of AddPlaceFlags.
//   flags: outlives `verb`.
void AddBenchJoinFlags(CLI::App& verb, BenchJoinFlags& flags);
// --coordinator, for a bench that refuses it.
//   why: "each of its samples is of a job of its own".
void RefuseBenchJoin(CLI::App& verb, const std::string& why);

// What a bench does with a job.
struct JoinedBench {
  // How many nodes it is of; 0: any number.
  int nodes = 0;
  // Tensors at a time, as of CompletePlan.
  size_t depth = 1;
  // What a time is, see BenchReport.
  std::string time;
  // What each node does after the meeting; without it RunBenchWork.
  std::function<absl::Status(StoreSync& meeting, const BenchPlan& plan)> work;
  // Fills in the rows of a report from what all have told.
  std::function<absl::Status(int nodes, BenchLines& lines, BenchReport& report)> read;
};

// Joins, measures together with the others, and leaves; the first node ends as FinishBench.
//   flags: not completed yet.
//   Errors: INVALID_ARGUMENT naming the flag; ABORTED why it has ended.
absl::StatusOr<int> RunJoinedBench(BenchPlanFlags& flags, BenchJoinFlags& join,
                                   const BenchOutput& output, const JoinedBench& what);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_JOINED_H_
