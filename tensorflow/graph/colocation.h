// SPDX-License-Identifier: Apache-2.0
// Colocation: groups of nodes that must share a device, and each group's device constraints.
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

// Groups of colocated nodes. Not thread-safe; the graph and the devices must outlive it.
class Colocation {
 public:
  Colocation(const Graph& graph, const DeviceSet& devices, bool is_soft);

  // Builds the groups. Nodes with an entry in `placed` (the first ones) are fixed to that device.
  //   Errors: INVALID_ARGUMENT for a device that is malformed or does not exist, or for nodes with
  //   conflicting colocation constraints.
  absl::Status Gather(absl::Span<const int> placed);

  // Returns the representative node of the group of `node`.
  int GroupOf(int node) const;
  bool is_alone(int node) const { return group(node).size == 1; }
  // Returns the group's chosen device, or -1 if none is chosen yet.
  int decided(int node) const { return group(node).device; }
  void Decide(int node, int device) { group(node).device = device; }

  // Returns OK if `node` itself has a kernel on that device. Needed if its group's device was
  // chosen without regard to it.
  absl::Status CheckKernel(int node, int device) const;
  // True if the group of `node` may be placed on `device`.
  bool IsPossible(int node, int device) const;
  // Returns the first device allowed for the group of `node`.
  //   Errors: INVALID_ARGUMENT, naming `node`, if there is none.
  absl::StatusOr<int> Choose(int node);

 private:
  struct Group {
    DeviceSpec spec;
    int size = 1;
    int device = -1;
    // Bitmask over types_: device types for which every node of the group has a kernel.
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
  // The device types of the session.
  std::vector<std::string> types_;
  // Union-find, one entry per node: a node of the same group that is closer to the representative.
  mutable std::vector<int> parents_;
  std::vector<Group> groups_;
  // Parsed device requests by text; only those that match some device.
  absl::flat_hash_map<std::string, DeviceSpec> specs_;
  // Colocation class to one node of it.
  absl::flat_hash_map<absl::string_view, int> classes_;
  absl::flat_hash_map<std::string, int> first_possible_;
};

}  // namespace ferry::graph

#endif  // FERRY_TENSORFLOW_GRAPH_COLOCATION_H_
