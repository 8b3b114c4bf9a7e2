// SPDX-License-Identifier: Apache-2.0
// MasterOptions and MasterContext: configuration, and state shared by the master's parts.
#ifndef FERRY_TENSORFLOW_MASTER_MASTER_OPTIONS_H_
#define FERRY_TENSORFLOW_MASTER_MASTER_OPTIONS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"

#include "base/budget.h"
#include "base/usable_resources.h"
#include "tensorflow/graph/graph.h"
#include "tensorflow/master/graph_work.h"
#include "tensorflow/master/session_workers.h"
#include "tensorflow/master/step_log.h"
#include "tensorflow/master/timers.h"

namespace ferry::master {

struct MasterOptions {
  // How long CreateSession and ListDevices wait for workers by default; the client may override it.
  absl::Duration worker_timeout = absl::Seconds(60);
  // Sessions idle for longer are closed; infinite: never.
  absl::Duration session_idle_timeout = absl::Hours(24);
  SessionCallLimits calls;

  // Limits. Errors name the limit that was exceeded.
  size_t max_sessions = 10'000;
  // Steps in progress, over all sessions.
  size_t max_steps = 100'000;
  // Registered steps per session; the least recently used one is evicted.
  size_t max_step_graphs = 1'000;
  size_t max_callables = 10'000;
  size_t max_partial_runs = 1'000;
  // Per request, after parsing: two wire bytes may become a message of hundreds.
  size_t max_request_bytes = size_t{4} << 30;
  // Per session's graph, including extensions: nodes, and encoded bytes.
  size_t max_graph_nodes = size_t{1} << 22;
  size_t max_graph_bytes = size_t{2} << 30;
  // Memory of the graphs of all sessions, including those being created.
  size_t max_all_graph_bytes = ShareOfMemory(size_t{16} << 30, 2);
  // Requests queued for the threads that process graphs.
  GraphWork::Limits waiting;
  // Per constant, and over all constants of a session's graph; computed from their shapes.
  size_t max_constant_bytes = size_t{2} << 30;
  size_t max_all_constant_bytes = ShareOfMemory(size_t{16} << 30, 2);
  // Feeds of one call; computed from their shapes.
  size_t max_feed_bytes = size_t{4} << 30;
  // Feeds of all calls in progress.
  size_t max_all_feed_bytes = ShareOfMemory(size_t{16} << 30, 2);
  graph::GraphLimits graph;
  // Number of recent request ids remembered.
  size_t request_id_window = 10'000;

  // Number of recent steps whose timings are kept; 0: none.
  size_t trace_steps = 64;

  // Names this machine in errors about unknown ops.
  std::string host = "this machine";
};

// Thread-safe; must outlive its users.
struct MasterContext {
  const MasterOptions& options;
  Timers& timers;
  // For long computations.
  GraphWork& work;
  // Budget for max_all_graph_bytes.
  Budget& graphs;
  // Budget for max_all_feed_bytes.
  Budget& feeds;
  // Returns 64 random bits.
  std::function<uint64_t()> random;
  // Steps in progress, over all sessions.
  mutable std::atomic<size_t> steps{0};
  // Timings of the last steps; null: not kept.
  StepLog* log = nullptr;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_MASTER_OPTIONS_H_
