// SPDX-License-Identifier: Apache-2.0
// WorkerLimits: what masters may request of a worker.
#ifndef FERRY_TENSORFLOW_WORKER_LIMITS_H_
#define FERRY_TENSORFLOW_WORKER_LIMITS_H_

#include <cstddef>

#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

struct WorkerLimits {
  size_t max_sessions = 10'000;
  // Per session.
  size_t max_graphs = 100'000;
  // Steps open at the same time.
  size_t max_steps = 100'000;
  // Per graph.
  int max_nodes = 1 << 22;
  // Per request, after parsing: two wire bytes may become a message of hundreds.
  size_t max_request_bytes = size_t{4} << 30;
  // Constants of all registered graphs; computed from their shapes.
  size_t max_constant_bytes = MemoryBytes() / 2;
  // Feeds of all open steps; computed from their shapes.
  size_t max_feed_bytes = MemoryBytes() / 2;
  // Recent runs whose node timings are kept for traces; 0: none. Also limits their total number of
  // nodes; a larger run is not kept.
  size_t trace_runs = 64;
  size_t max_trace_nodes = size_t{1} << 16;
  // Limits of the transfer log for masters that use the Logging method: steps, and tensors.
  size_t max_log_steps = 1024;
  size_t max_log_rows = size_t{1} << 16;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_LIMITS_H_
