// SPDX-License-Identifier: Apache-2.0
// How much masters may ask of a worker.
#ifndef FERRY_TENSORFLOW_WORKER_LIMITS_H_
#define FERRY_TENSORFLOW_WORKER_LIMITS_H_

#include <cstddef>

#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

struct WorkerLimits {
  size_t max_sessions = 10'000;
  // Registered in one session.
  size_t max_graphs = 100'000;
  // Steps that are open at a time.
  size_t max_steps = 100'000;
  // Of one graph.
  int max_nodes = 1 << 22;
  // Of one request when it has been parsed: two bytes may become a message of hundreds.
  size_t max_request_bytes = size_t{4} << 30;
  // Of the constants of all registered graphs together, as their shapes say.
  size_t max_constant_bytes = MemoryBytes() / 2;
  // Of what was fed into the steps that are open, together, as the shapes say.
  size_t max_feed_bytes = MemoryBytes() / 2;
  // Runs of graphs of which is kept what each node did, for who asks; 0: none. Together they have
  // at most so many nodes; a run of more is not kept.
  size_t trace_runs = 64;
  size_t max_trace_nodes = size_t{1} << 16;
  // What came from other workers, kept for masters that ask with Logging: of so many steps, and so
  // many tensors.
  size_t max_log_steps = 1024;
  size_t max_log_rows = size_t{1} << 16;
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_LIMITS_H_
