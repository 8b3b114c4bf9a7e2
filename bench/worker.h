// SPDX-License-Identifier: Apache-2.0
// The work of each process of a ferry bench that moves tensors.
#ifndef FERRY_BENCH_WORKER_H_
#define FERRY_BENCH_WORKER_H_

#include "absl/status/status.h"

#include "bench/meeting.h"
#include "bench/plan.h"

namespace ferry::cli {

// Runs this process's part of all cases in `plan`; all participants must call it concurrently.
absl::Status RunBenchWork(const BenchParticipants& party, BenchSync& meeting,
                          const BenchPlan& plan);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_WORKER_H_
