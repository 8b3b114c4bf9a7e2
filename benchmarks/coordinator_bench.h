// SPDX-License-Identifier: Apache-2.0
// The parts of coordinator_bench; each registers its benchmarks, which add their gates as they run.
#ifndef FERRY_BENCHMARKS_COORDINATOR_BENCH_H_
#define FERRY_BENCHMARKS_COORDINATOR_BENCH_H_

#include "benchmarks/support/gates.h"

namespace ferry::bench {

// Set and get over the compatible services, against an empty unary call.
void RegisterKvBenchmarks(const Plan& plan);
// Set and get over ferry.v1.Control, one by one and in batches, against a bare stream.
void RegisterStreamBenchmarks(const Plan& plan);
// Barriers of many ranks with a connection each, against pending empty calls.
void RegisterBarrierBenchmarks(const Plan& plan);
// Server memory of a connected rank and of a pending wait.
void RegisterMemoryBenchmarks(const Plan& plan);
// Join, topology, all endpoints and a barrier, against connecting as many bare channels.
void RegisterBootstrapBenchmarks(const Plan& plan);

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_COORDINATOR_BENCH_H_
