// SPDX-License-Identifier: Apache-2.0
// Prunes a graph to what a step needs.
#ifndef FERRY_TENSORFLOW_GRAPH_PRUNE_H_
#define FERRY_TENSORFLOW_GRAPH_PRUNE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/graph.h"

namespace ferry::graph {

// Names as clients write them: "x", "x:0".
struct StepRequest {
  std::vector<std::string> feeds;
  std::vector<std::string> fetches;
  std::vector<std::string> targets;
};

// A tensor that the client feeds or fetches.
struct StepTensor {
  // As the client wrote it.
  std::string name;
  DataType type = tensorflow::DT_INVALID;
  // Its key in the step's rendezvous.
  std::string key;
  // Its _Recv or _Send in StepGraph::graph; -1 for a feed that nothing consumes, which is not
  // received.
  int node = -1;
};

struct StepGraph {
  // The needed nodes, a _Recv for each used feed, and a _Send for each fetched tensor; transfers
  // are on the client's device.
  Graph graph;
  std::vector<int> placement;
  // One per request entry, in its order. Fetches of the same tensor share a key.
  std::vector<StepTensor> feeds;
  std::vector<StepTensor> fetches;
};

// Cuts the graph at the feeds and keeps what fetches and targets need: feeds replace computed
// values, and a fed placeholder never runs. Linear in the size of the whole graph.
//   placement: the device of every node of `graph` (Place).
//   Errors, with TensorFlow's texts: NOT_FOUND for unknown names; INVALID_ARGUMENT for an output
//   that the node does not have, a tensor that is fed twice, or both fed and fetched, and for a
//   step without fetches or targets.
absl::StatusOr<StepGraph> Prune(const Graph& graph, absl::Span<const int> placement,
                                const DeviceSet& devices, const StepRequest& request);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_PRUNE_H_
