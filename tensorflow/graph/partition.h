// SPDX-License-Identifier: Apache-2.0
// Cuts a placed graph into one for each device.
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

// What one device runs.
struct Partition {
  int device = 0;
  tensorflow::GraphDef graph;
};

// A tensor that goes from one partition to another, or from a device's memory to the host's.
struct Crossing {
  std::string src_node;
  // -1: nothing but that it has run.
  int src_port = 0;
  int src_device = 0;
  int dst_device = 0;
  std::string send_node;
  std::string recv_node;
  // Under which it goes through the rendezvous of a step.
  std::string key;
};

struct Partitioned {
  // By device; only of those that have something to do.
  std::vector<Partition> partitions;
  std::vector<Crossing> crossings;
};

// Every tensor is sent to another device once, however many nodes take it there. That a node waits
// for another one on another device is sent as an empty tensor. Nodes that are added have names
// that no other node has: "x_S1".
//   placement: of every node (StepGraph::placement).
//   Errors: INTERNAL if a node is on a device that has no kernel for it.
absl::StatusOr<Partitioned> PartitionByDevice(const Graph& graph, absl::Span<const int> placement,
                                              const DeviceSet& devices);

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_PARTITION_H_
