// SPDX-License-Identifier: Apache-2.0
// Colocation: which nodes must be on one device, and what is known of it.
#ifndef FERRY_TENSORFLOW_GRAPH_COLOCATION_H_
#define FERRY_TENSORFLOW_GRAPH_COLOCATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "tensorflow/graph/device_set.h"
#include "tensorflow/graph/device_spec.h"
#include "tensorflow/graph/graph.h"

namespace ferry::graph {

// Groups of nodes. Not thread-safe; the graph and the devices must outlive it.
class Colocation {
 public:
  Colocation(const Graph& graph, const DeviceSet& devices, bool is_soft);

  // Makes the groups. Those of the first nodes are fixed to where `placed` says.
  //   Errors: INVALID_ARGUMENT for a device that is malformed or not there, or for nodes that must
  //   be together and cannot.
  absl::Status Gather(absl::Span<const int> placed);

  // The node that stands for the group of `node`.
  int GroupOf(int node) const;
  bool is_alone(int node) const { return group(node).size == 1; }
  // The device that has been decided; -1 if none has.
  int decided(int node) const { return group(node).device; }
  void Decide(int node, int device) { group(node).device = device; }

  // OK if `node` itself has a kernel there, which matters where its group's device was decided
  // without it.
  absl::Status CheckKernel(int node, int device) const;
  // Whether the group of `node` may go to `device`.
  bool IsPossible(int node, int device) const;
  // The first device that it may go to.
  //   Errors: INVALID_ARGUMENT if there is none, about `node`.
  absl::StatusOr<int> Choose(int node);

 private:
  struct Group {
    DeviceSpec spec;
    int size = 1;
    int device = -1;
    // Of types_, those for which every node has a kernel; bit by bit.
    uint64_t types = 0;
  };

  Group& group(int node) { return groups_[static_cast<size_t>(GroupOf(node))]; }
  const Group& group(int node) const { return groups_[static_cast<size_t>(GroupOf(node))]; }

  absl::Status ReadSpec(int node);
  absl::Status GatherClasses(int node);
  absl::Status Join(int node, int other);
  void JoinResource(int user, int source);
  void Unite(int root, int other, DeviceSpec spec);
  uint64_t KernelTypes(const Node& node) const;
  uint64_t TypeBit(int device) const;
  int FirstPossible(const DeviceSpec& spec, uint64_t types);
  absl::Status NoDeviceError(int node) const;
  absl::Status NoKernelError(const Node& node) const;

  const Graph& graph_;
  const DeviceSet& devices_;
  const bool is_soft_;
  // The types of devices there are.
  std::vector<std::string> types_;
  // One for each node: another node of its group that is nearer to the one that stands for it.
  mutable std::vector<int> parents_;
  std::vector<Group> groups_;
  // What clients wrote, where some device is meant by it.
  absl::flat_hash_map<std::string, DeviceSpec> specs_;
  // The classes, and one node of each.
  absl::flat_hash_map<absl::string_view, int> classes_;
  absl::flat_hash_map<std::string, int> first_possible_;
};

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_COLOCATION_H_
