// SPDX-License-Identifier: Apache-2.0
// Topology: the devices of all nodes of a job, and the links between them.
#ifndef FERRY_INCLUDE_FERRY_TOPOLOGY_H_
#define FERRY_INCLUDE_FERRY_TOPOLOGY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include <ferry/device.h>
#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// From near to far, with the names of NCCL and nvidia-smi.
enum class LinkType {
  kLoc = 0,   // the device itself
  kNvl = 1,   // NVLink
  kPix = 2,   // one PCIe switch
  kPxb = 3,   // several PCIe switches
  kPhb = 4,   // one PCIe host bridge
  kNode = 5,  // several host bridges within one NUMA node
  kSys = 6,   // several NUMA nodes
  kNet = 7,   // the network
  kDis = 8,   // unknown, or not connected
};

// "LOC", "NVL", ... "DIS".
std::string ToString(LinkType type);

// The best path between two devices. A plain value; the same in both directions.
struct Link {
  LinkType type = LinkType::kDis;
  // NVLinks of the pair; 0 if there are none or their number is unknown.
  int nvlink_count = 0;
  // Nominal, in one direction; 0 if unknown.
  uint64_t bandwidth_bytes_per_s = 0;

  friend bool operator==(const Link&, const Link&) = default;
};

// A device of the job. A plain value.
struct DeviceInfo {
  // Position in Topology::devices(), the same on all nodes; dense from 0, by rank and then in the
  // node's order.
  int global_id = 0;
  int rank = 0;
  Device device;
  std::string model;       // "NVIDIA H200", "AMD EPYC 7742 64-Core Processor"
  std::string uuid;        // "GPU-6d3f..."; empty for hosts, shared GPUs, and if unknown
  std::string pci_bus_id;  // "0000:19:00.0"; empty for hosts
  int compute_major = 0;   // CUDA compute capability; 0.0 for hosts
  int compute_minor = 0;
  int core_count = 0;         // streaming multiprocessors of a GPU, physical cores of a host
  uint64_t memory_bytes = 0;  // 0 if unknown
  int numa_node = -1;         // -1 if unknown, or if the host has several

  friend bool operator==(const DeviceInfo&, const DeviceInfo&) = default;
};

// A node of the job. A plain value.
struct NodeInfo {
  int rank = 0;
  // For display: two hosts may have the same name. See Topology::IsSameHost.
  std::string host_name;
  // Nodes whose GPUs share an NVLink fabric, or else a host, are in one partition.
  int partition = 0;
  // Global ids of its devices.
  std::vector<int> devices;

  friend bool operator==(const NodeInfo&, const NodeInfo&) = default;
};

// A value: immutable, cheap to copy, thread-safe. The same on every node of the job. Ranks and
// global ids that do not exist are answered as each method says.
class Topology {
 public:
  // No nodes.
  Topology();
  // A move is a copy too.
  Topology(const Topology&) = default;
  Topology& operator=(const Topology&) = default;

  // By rank.
  const std::vector<NodeInfo>& nodes() const;
  // By global id.
  const std::vector<DeviceInfo>& devices() const;

  // The global id of a node's device; nullopt if there is none.
  std::optional<int> FindDevice(int rank, const Device& device) const;
  // The first GPU of each node that has one, by global id, in the order of the ranks.
  std::vector<int> OneGpuOfEachNode() const;

  // Whether both nodes run on one host; false if there is no such node.
  bool IsSameHost(int rank_a, int rank_b) const;
  // The path between two devices by their global ids.
  //   Errors: INVALID_ARGUMENT there is no such device.
  absl::StatusOr<Link> LinkBetween(int global_a, int global_b) const;

 private:
  class Impl;
  friend class ApiAccess;

  std::shared_ptr<const Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_TOPOLOGY_H_
