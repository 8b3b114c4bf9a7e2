// SPDX-License-Identifier: Apache-2.0
// Converts node timings to TensorFlow's StepStats.
#ifndef FERRY_TENSORFLOW_WORKER_STEP_STATS_H_
#define FERRY_TENSORFLOW_WORKER_STEP_STATS_H_

#include <vector>

#include "proto/tf_step_stats.pb.h"
#include "tensorflow/worker/graph_run.h"
#include "tensorflow/worker/registered_graph.h"

namespace ferry::worker {

// Adds a row per node that ran, under its device: "z = AddV2(x, y)". Communication nodes give size,
// endpoints and path: "[64.0KB] edge_3_x from /job:... to /job:... by shm".
//   times: one per node of the graph's plan, in nanoseconds since 1970.
void FillStepStats(const RegisteredGraph& graph, const std::vector<NodeTimes>& times,
                   tensorflow::StepStats& stats);

// Adds a row per tensor received from another worker, under the receiving device: the content of
// Logging responses.
void FillTransfers(const RegisteredGraph& graph, const std::vector<NodeTimes>& times,
                   tensorflow::StepStats& stats);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_STEP_STATS_H_
