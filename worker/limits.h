// SPDX-License-Identifier: Apache-2.0
// How much masters may ask of a worker.
#ifndef FERRY_WORKER_LIMITS_H_
#define FERRY_WORKER_LIMITS_H_

#include <cstddef>

namespace ferry::worker {

struct WorkerLimits {
  size_t max_sessions = 10'000;
  // Registered in one session.
  size_t max_graphs = 100'000;
  // Steps that are open at a time.
  size_t max_steps = 100'000;
  // Of one graph.
  int max_nodes = 1 << 22;
};

}  // namespace ferry::worker

#endif  // FERRY_WORKER_LIMITS_H_
