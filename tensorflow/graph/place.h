// SPDX-License-Identifier: Apache-2.0
// Which node runs on which device.
#ifndef FERRY_TENSORFLOW_GRAPH_PLACE_H_
#define FERRY_TENSORFLOW_GRAPH_PLACE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/graph.h"

namespace ferry::graph {

struct PlaceOptions {
  // A device that is not there, or has no kernel for the node, is replaced by another one of the
  // same job and task.
  bool allow_soft_placement = false;
};

// For every node the number of its device.
//   placed: of the first nodes, where they are since before; they stay there, with what must be on
//   the same device.
// Nodes are together that share an entry "loc:@x" of their attribute _class, or are x, and so are a
// resource and what uses it. Of the devices that are left a node takes the first of the set, but: a
// node without inputs goes to its consumers if they are all on one device, and one that only asks
// for a shape to its input.
//   Errors, with TensorFlow's texts: INVALID_ARGUMENT for a device that is malformed or not there,
//   for nodes that must be together and cannot, and for an op without a kernel that would do.
absl::StatusOr<std::vector<int>> Place(const Graph& graph, const DeviceSet& devices,
                                       const PlaceOptions& options,
                                       absl::Span<const int> placed = {});

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_PLACE_H_
