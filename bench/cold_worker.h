// SPDX-License-Identifier: Apache-2.0
// One of the two processes of ferry bench cold.
#ifndef FERRY_BENCH_COLD_WORKER_H_
#define FERRY_BENCH_COLD_WORKER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "bench/meeting.h"
#include "bench/plan.h"

namespace ferry::cli {

// Returns the phases of a first transfer, in order; each runs once, and is reported as a case of
// one round.
std::vector<std::string> ColdPhasesOf(const BenchPlan& plan);

// For the plan's only size. REQUIRES: no transfers between the two nodes so far.
absl::Status RunColdWorker(const BenchParticipants& party, BenchSync& meeting,
                           const BenchPlan& plan);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_COLD_WORKER_H_
