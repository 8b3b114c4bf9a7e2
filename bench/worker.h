// SPDX-License-Identifier: Apache-2.0
// What each process of a ferry bench does that moves tensors.
#ifndef FERRY_BENCH_WORKER_H_
#define FERRY_BENCH_WORKER_H_

#include "absl/status/status.h"

#include "bench/meeting.h"
#include "bench/plan.h"

namespace ferry::cli {

// This one's part of `plan`, from the first case to the last; all of the party are in it at once.
absl::Status RunBenchWork(const BenchParticipants& party, BenchSync& meeting,
                          const BenchPlan& plan);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_WORKER_H_
