// SPDX-License-Identifier: Apache-2.0
// What a master can be told, and what its parts share.
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
  // How long CreateSession and ListDevices wait for workers, unless the client says.
  absl::Duration worker_timeout = absl::Seconds(60);
  // A session that nothing is asked of for longer is closed; infinite: never.
  absl::Duration session_idle_timeout = absl::Hours(24);
  SessionCallLimits calls;

  // Limits. Each error that one of them causes names it.
  size_t max_sessions = 10'000;
  // Steps under way, of all sessions.
  size_t max_steps = 100'000;
  // Steps of a session that are kept at the workers: the one that has not been run for longest
  // goes.
  size_t max_step_graphs = 1'000;
  size_t max_callables = 10'000;
  size_t max_partial_runs = 1'000;
  // Of one request, when it has been parsed: two bytes may become a message of hundreds.
  size_t max_request_bytes = size_t{4} << 30;
  // Of all parts of a session's graph together: nodes, and bytes as they came.
  size_t max_graph_nodes = size_t{1} << 22;
  size_t max_graph_bytes = size_t{2} << 30;
  // Of the graphs of all sessions together, those that are being opened among them: memory.
  size_t max_all_graph_bytes = ShareOfMemory(size_t{16} << 30, 2);
  // Requests that wait for the threads that read graphs.
  GraphWork::Limits waiting;
  // Of one constant, and of all constants of a session's graph, as their shapes say.
  size_t max_constant_bytes = size_t{2} << 30;
  size_t max_all_constant_bytes = ShareOfMemory(size_t{16} << 30, 2);
  // Of what one call feeds, as the shapes say.
  size_t max_feed_bytes = size_t{4} << 30;
  // Of what all calls that are under way feed.
  size_t max_all_feed_bytes = ShareOfMemory(size_t{16} << 30, 2);
  graph::GraphLimits graph;
  // Request ids that are remembered.
  size_t request_id_window = 10'000;

  // Steps of which is kept when they ran, for who asks; 0: none.
  size_t trace_steps = 64;

  // In errors about ops that nobody knows.
  std::string host = "this machine";
};

// Thread-safe; outlives what uses it.
struct MasterContext {
  const MasterOptions& options;
  Timers& timers;
  // What takes long to compute.
  GraphWork& work;
  // Of max_all_graph_bytes.
  Budget& graphs;
  // Of max_all_feed_bytes.
  Budget& feeds;
  // 64 random bits.
  std::function<uint64_t()> random;
  // Under way, of all sessions.
  mutable std::atomic<size_t> steps{0};
  // The last ones; null: they are not kept.
  StepLog* log = nullptr;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_MASTER_OPTIONS_H_
