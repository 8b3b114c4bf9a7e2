// SPDX-License-Identifier: Apache-2.0
// What a run took, as TensorFlow's clients read it.
#ifndef FERRY_TENSORFLOW_WORKER_STEP_STATS_H_
#define FERRY_TENSORFLOW_WORKER_STEP_STATS_H_

#include <vector>

#include "proto/tf_step_stats.pb.h"
#include "tensorflow/worker/graph_run.h"
#include "tensorflow/worker/registered_graph.h"

namespace ferry::worker {

// A row for each node that ran, under its device: "z = AddV2(x, y)". TransferEngine nodes say what
// went where, how much and how: "[64.0KB] edge_3_x from /job:... to /job:... by shm".
//   times: one for each node of the graph's plan, in nanoseconds since 1970.
void FillStepStats(const RegisteredGraph& graph, const std::vector<NodeTimes>& times,
                   tensorflow::StepStats& stats);

// A row for each tensor that came from another worker, under the device it came to: what Logging
// answers.
void FillTransfers(const RegisteredGraph& graph, const std::vector<NodeTimes>& times,
                   tensorflow::StepStats& stats);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_STEP_STATS_H_
