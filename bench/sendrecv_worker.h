// SPDX-License-Identifier: Apache-2.0
// One of the two processes of ferry bench sendrecv.
#ifndef FERRY_BENCH_SENDRECV_WORKER_H_
#define FERRY_BENCH_SENDRECV_WORKER_H_

#include "absl/status/status.h"

#include "bench/meeting.h"
#include "bench/plan.h"

namespace ferry::cli {

// Measures `plan` together with the other process, and reports each case in a line.
absl::Status RunSendRecvWorker(const BenchParticipants& party, BenchSync& meeting,
                               const BenchPlan& plan);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_SENDRECV_WORKER_H_
