// SPDX-License-Identifier: Apache-2.0
// Partitions a placed graph by device.
#ifndef FERRY_TENSORFLOW_GRAPH_PARTITION_H_
#define FERRY_TENSORFLOW_GRAPH_PARTITION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/tf_graph.pb.h"
#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/graph.h"

namespace ferry::graph {

// The part of the graph that one device runs.
struct Partition {
  int device = 0;
  tensorflow::GraphDef graph;
};

// A tensor sent between partitions, or between a device's memory and the host's.
struct Crossing {
  std::string src_node;
  // -1: a control dependency.
  int src_port = 0;
  int src_device = 0;
  int dst_device = 0;
  std::string send_node;
  std::string recv_node;
  // Its key in the step's rendezvous.
  std::string key;
};

struct Partitioned {
  // By device; only devices with nodes.
  std::vector<Partition> partitions;
  std::vector<Crossing> crossings;
};

// Each tensor is sent to another device once, however many nodes consume it there. A control
// dependency across devices is sent as an empty tensor. Added nodes get unused names such as
// "x_S1".
//   placement: the device of every node (StepGraph::placement).
//   Errors: INTERNAL if a node is on a device that has no kernel for it.
absl::StatusOr<Partitioned> PartitionByDevice(const Graph& graph, absl::Span<const int> placement,
                                              const DeviceSet& devices);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_PARTITION_H_
