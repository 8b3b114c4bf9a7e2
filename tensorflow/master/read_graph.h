// SPDX-License-Identifier: Apache-2.0
// Reads clients' graphs within limits.
#ifndef FERRY_TENSORFLOW_MASTER_READ_GRAPH_H_
#define FERRY_TENSORFLOW_MASTER_READ_GRAPH_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/tf_graph.pb.h"
#include "tensorflow/master/master_options.h"
#include "tensorflow/master/step_plan.h"

namespace ferry::master {

// Reads a client's graph, without placing it.
//   before: the graph to extend; null: none.
//   Errors: as graph::Graph::Create; RESOURCE_EXHAUSTED naming the limit.
absl::StatusOr<PlacedGraph> ReadGraph(tensorflow::GraphDef def, const PlacedGraph* before,
                                      const MasterOptions& options);
// Returns an estimate of its memory in bytes, as a message or as a graph.
size_t GraphMemory(const tensorflow::GraphDef& def);
//   Errors: RESOURCE_EXHAUSTED naming max_all_graph_bytes.
absl::Status TakeGraphShare(const MasterContext& context, size_t bytes, Budget::Share& share);

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_READ_GRAPH_H_
