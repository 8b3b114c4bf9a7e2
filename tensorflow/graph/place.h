// SPDX-License-Identifier: Apache-2.0
// Assigns nodes to devices.
#ifndef FERRY_TENSORFLOW_GRAPH_PLACE_H_
#define FERRY_TENSORFLOW_GRAPH_PLACE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/graph.h"

namespace ferry::graph {

struct PlaceOptions {
  // If a device does not exist, or has no kernel for the node, use another device of the same job
  // and task.
  bool allow_soft_placement = false;
};

// Returns the device number of every node.
//   placed: existing devices of the first nodes; these nodes, and nodes colocated with them, stay
//   there.
// Nodes that share an entry "loc:@x" of their attribute _class are placed together, with node x if
// it exists; so are a resource and its users. Among the possible devices a node gets the first of
// the set, except: a node without inputs goes with its consumers if they share one device, and a
// node that only reads a shape goes with its input.
//   Errors, with TensorFlow's texts: INVALID_ARGUMENT for a device that is malformed or does not
//   exist, for conflicting colocation constraints, and for an op without a suitable kernel.
absl::StatusOr<std::vector<int>> Place(const Graph& graph, const DeviceSet& devices,
                                       const PlaceOptions& options,
                                       absl::Span<const int> placed = {});

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_PLACE_H_
