// SPDX-License-Identifier: Apache-2.0
// GlobalTopology: every node's devices under dense global ids, and the path between any two of
// them.
#ifndef FERRY_TOPOLOGY_GLOBAL_TOPOLOGY_H_
#define FERRY_TOPOLOGY_GLOBAL_TOPOLOGY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "topology/device.h"
#include "topology/link.h"
#include "topology/local_topology.h"

namespace ferry {

// Limits of one job.
inline constexpr size_t kMaxNodes = 1 << 16;
inline constexpr size_t kMaxGlobalDevices = 1 << 20;

// The location of a global id's device: nodes()[node_index].devices[device_index].
struct GlobalDevice {
  int node_index = 0;
  int device_index = 0;

  friend bool operator==(const GlobalDevice&, const GlobalDevice&) = default;
};

// The regularity of the job. All three are -1 unless all partitions have equally many nodes and
// all nodes equally many devices. Devices here are the GPUs, or the host devices in a job without
// GPUs.
struct TopologyCounts {
  int partition_count = -1;
  int nodes_per_partition = -1;
  int devices_per_node = -1;

  friend bool operator==(const TopologyCounts&, const TopologyCounts&) = default;
};

// A value type: copyable, comparable, immutable, hence thread-safe. Made by BuildGlobalTopology.
class GlobalTopology {
 public:
  // Ascending by node id.
  const std::vector<LocalTopology>& nodes() const { return nodes_; }

  // By global id: device i of the job is devices()[i].
  const std::vector<GlobalDevice>& devices() const { return devices_; }

  // The partition of each node, by node index; numbered from 0 by first appearance unless the
  // nodes set their own.
  const std::vector<int>& partitions() const { return partitions_; }

  const TopologyCounts& counts() const { return counts_; }

  // The index in nodes() of the node with this id, or nullopt.
  std::optional<int> NodeIndex(int32_t node_id) const;

  // The global id of a node's device, by both indexes. REQUIRES: they exist.
  int GlobalId(int node_index, int device_index) const;

  // REQUIRES: 0 <= global_id < devices().size(), here and below.
  const Device& device(int global_id) const;
  // The first GPU of each node that has one, by global id, in the order of the nodes.
  std::vector<int> OneGpuOfEachNode() const;
  std::string DeviceName(int global_id) const;  // "node3/gpu:1"

  // True if both nodes run on one machine: they are one node, or have the same boot id.
  bool SameMachine(int node_index_a, int node_index_b) const;

  // The path between two devices of the job.
  //   One node: as that node reported it.
  //   Two nodes on one machine: what either node reports for the two PCI bus ids; else LOC between
  //   host memories, PHB between a host and a GPU, NVL between GPUs of one fabric, and NODE or SYS
  //   by their NUMA nodes (SYS when those are unknown).
  //   Two machines: NVL between GPUs of one NVLink fabric that spans machines, else NET.
  Link LinkBetween(int global_a, int global_b) const;

  friend bool operator==(const GlobalTopology& a, const GlobalTopology& b) {
    return a.nodes_ == b.nodes_;  // the rest follows from it
  }

 private:
  friend absl::StatusOr<GlobalTopology> BuildGlobalTopology(absl::Span<const LocalTopology> nodes);

  std::vector<LocalTopology> nodes_;
  std::vector<GlobalDevice> devices_;
  std::vector<int> first_device_;  // by node index
  std::vector<int> partitions_;
  TopologyCounts counts_;
};

// Merges the reports of a job's nodes, given in any order. Global ids are dense from 0: nodes by
// ascending id, within a node in its own order.
// Partitions, when no node names its own: by NVLink fabric if there are GPUs and each is in one,
// else by boot id; a node without a boot id is alone. A node of several fabrics belongs to the set
// of them. Under fabrics, a node without GPUs joins the partition of the first node with its boot
// id, else those of its boot id form one.
//   Errors: INVALID_ARGUMENT, naming both nodes where there are two, if a node is invalid by
//   itself or appears twice, some but not all nodes name a partition, or a UUID is reported by two
//   nodes. RESOURCE_EXHAUSTED above kMaxNodes or kMaxGlobalDevices.
absl::StatusOr<GlobalTopology> BuildGlobalTopology(absl::Span<const LocalTopology> nodes);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_GLOBAL_TOPOLOGY_H_
