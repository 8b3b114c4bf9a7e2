// SPDX-License-Identifier: Apache-2.0
// One process of ferry bench bidir, ring, fan-in, fan-out, all-pairs, keyed and steps.
#ifndef FERRY_BENCH_PATTERN_WORKER_H_
#define FERRY_BENCH_PATTERN_WORKER_H_

#include "absl/status/status.h"

#include "bench/meeting.h"
#include "bench/plan.h"

namespace ferry::cli {

// Measures `plan` together with the other participants, and reports each case in a line.
//   REQUIRES: plan.pattern is not "sendrecv".
absl::Status RunPatternWorker(const BenchParticipants& party, BenchSync& meeting,
                              const BenchPlan& plan);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_PATTERN_WORKER_H_
