// SPDX-License-Identifier: Apache-2.0
// What of a graph a step needs.
#ifndef FERRY_TENSORFLOW_GRAPH_PRUNE_H_
#define FERRY_TENSORFLOW_GRAPH_PRUNE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/graph.h"

namespace ferry::graph {

// By names, as clients write them: "x", "x:0".
struct StepRequest {
  std::vector<std::string> feeds;
  std::vector<std::string> fetches;
  std::vector<std::string> targets;
};

// A tensor that the client gives or takes.
struct StepTensor {
  // As the client wrote it.
  std::string name;
  DataType type = tensorflow::DT_INVALID;
  // Under which it goes through the rendezvous of the step.
  std::string key;
  // Its _Recv or _Send in StepGraph::graph; -1 for a feed that nothing takes, which nobody
  // receives.
  int node = -1;
};

struct StepGraph {
  // The nodes that are needed, a _Recv for each feed that is used, and a _Send for each tensor that
  // is fetched; both on the client's device.
  Graph graph;
  std::vector<int> placement;
  // As many as the request has, in its order. Fetches of one tensor have one key.
  std::vector<StepTensor> feeds;
  std::vector<StepTensor> fetches;
};

// Cuts the graph at the feeds and keeps what fetches and targets need: feeds stand for what would
// be computed, and a placeholder that is fed is never run. Takes time for the whole graph.
//   placement: of every node of `graph` (Place).
//   Errors, with TensorFlow's texts: NOT_FOUND for names; INVALID_ARGUMENT for an output that the
//   node does not have, a tensor that is fed twice, or fed and fetched, and for a step that asks
//   for nothing.
absl::StatusOr<StepGraph> Prune(const Graph& graph, absl::Span<const int> placement,
                                const DeviceSet& devices, const StepRequest& request);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_PRUNE_H_
