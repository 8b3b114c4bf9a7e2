// SPDX-License-Identifier: Apache-2.0
// A node's part in ferry bench barrier.
#ifndef FERRY_BENCH_BARRIER_WORKER_H_
#define FERRY_BENCH_BARRIER_WORKER_H_

#include "absl/status/status.h"

#include "bench/plan.h"
#include "bench/store_sync.h"

namespace ferry::cli {

// Passes the coordinator's barrier with all other nodes of `meeting`, after Gather. After each
// timed passage comes a verified one: one node enters last on purpose, after all others have
// announced in the store that they enter, and announces itself first; any node that passes must
// find that announcement.
absl::Status RunBarrierWorker(StoreSync& meeting, const BenchPlan& plan);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_BARRIER_WORKER_H_
