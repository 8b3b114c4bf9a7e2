// SPDX-License-Identifier: Apache-2.0
// One of the processes of ferry bench bidir, ring, fan-in, fan-out, all-pairs, keyed and steps.
#ifndef FERRY_CLI_BENCH_PATTERN_WORKER_H_
#define FERRY_CLI_BENCH_PATTERN_WORKER_H_

#include "absl/status/status.h"

#include "cli/bench_plan.h"
#include "runtime/node.h"

namespace ferry::cli {

// Measures `plan` together with the other nodes of the job, and tells each case in a line.
//   REQUIRES: plan.pattern is not "sendrecv".
absl::Status RunPatternWorker(Node& node, const BenchPlan& plan);

}  // namespace ferry::cli

#endif  // FERRY_CLI_BENCH_PATTERN_WORKER_H_
