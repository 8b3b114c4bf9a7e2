// SPDX-License-Identifier: Apache-2.0
// What a node of a job does in ferry bench barrier.
#ifndef FERRY_BENCH_BARRIER_WORKER_H_
#define FERRY_BENCH_BARRIER_WORKER_H_

#include "absl/status/status.h"

#include "bench/plan.h"
#include "bench/store_sync.h"

namespace ferry::cli {

// Passes the coordinator's barrier with all others of `meeting`, after Gather. After each passage
// that is timed there is one more, to which one node comes last on purpose: it says so in the store
// when all others have said that they go there, and whoever is through has to find that.
absl::Status RunBarrierWorker(StoreSync& meeting, const BenchPlan& plan);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_BARRIER_WORKER_H_
