// SPDX-License-Identifier: Apache-2.0
// Builds the global topology and computes links between pairs of devices.
#include "topology/global_topology.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "topology/partition.h"

namespace ferry {
namespace {

absl::Status CheckAcrossNodes(const std::vector<LocalTopology>& nodes) {
  absl::flat_hash_map<absl::string_view, std::pair<const LocalTopology*, const Device*>> owners;
  size_t device_count = 0;
  const LocalTopology* previous = nullptr;
  for (const LocalTopology& node : nodes) {
    FERRY_RETURN_IF_ERROR(Validate(node));
    if (previous != nullptr && previous->node_id == node.node_id) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node.node_id, " appears twice: on ", previous->host_name, " at ",
                       previous->endpoint, " and on ", node.host_name, " at ", node.endpoint));
    }
    previous = &node;
    device_count += node.devices.size();
    for (const Device& device : node.devices) {
      if (device.uuid.empty()) continue;
      const auto [owner, is_new] = owners.try_emplace(device.uuid, &node, &device);
      if (is_new) continue;
      const auto& [first_node, first_device] = owner->second;
      return absl::InvalidArgumentError(absl::StrCat(
          "nodes ", first_node->node_id, " (", first_node->host_name, ") and ", node.node_id, " (",
          node.host_name, ") both report GPU ", device.uuid, ", as ", DeviceName(*first_device),
          " and ", DeviceName(device),
          ": give each process its own GPUs, or let both say that they share them (--share-gpus, "
          "NodeOptions::share_gpus)"));
    }
  }
  if (device_count > kMaxGlobalDevices) {
    return absl::ResourceExhaustedError(absl::StrCat("the job has ", device_count,
                                                     " devices, at most ", kMaxGlobalDevices,
                                                     " are allowed (kMaxGlobalDevices)"));
  }
  return absl::OkStatus();
}

// The link one node knows between two PCI bus ids, or DIS. Nodes of one machine often see all its
// GPUs.
Link LinkOfBusIds(const LocalTopology& node, const std::string& bus_a, const std::string& bus_b) {
  int a = -1;
  int b = -1;
  for (size_t i = 0; i < node.devices.size(); ++i) {
    if (node.devices[i].pci_bus_id == bus_a) a = static_cast<int>(i);
    if (node.devices[i].pci_bus_id == bus_b) b = static_cast<int>(i);
  }
  return a < 0 || b < 0 || a == b ? Link() : node.LinkBetween(a, b);
}

LinkType AcrossNuma(const Device& a, const Device& b) {
  const bool known = a.numa_node >= 0 && b.numa_node >= 0;
  return known && a.numa_node == b.numa_node ? LinkType::kNode : LinkType::kSys;
}

bool SameFabric(const Device& a, const Device& b) {
  return IsFabric(a.fabric_uuid) && a.fabric_uuid == b.fabric_uuid;
}

// NVLinks of a fabric end in switches; how many serve a pair is not known across nodes.
Link FabricLink(LinkType pcie) {
  Link link = PlainLink(pcie);
  link.type = LinkType::kNvl;
  link.nvlink_switched = true;
  return link;
}

Link LinkOnOneMachine(const LocalTopology& node_a, const Device& a, const LocalTopology& node_b,
                      const Device& b) {
  if (a.kind == DeviceKind::kHost && b.kind == DeviceKind::kHost) return PlainLink(LinkType::kLoc);
  if (a.kind == DeviceKind::kHost || b.kind == DeviceKind::kHost) return PlainLink(LinkType::kPhb);
  if (!a.pci_bus_id.empty() && !b.pci_bus_id.empty()) {
    for (const LocalTopology* node : {&node_a, &node_b}) {
      const Link link = LinkOfBusIds(*node, a.pci_bus_id, b.pci_bus_id);
      if (link.type != LinkType::kDis) return link;
    }
  }
  const LinkType pcie = AcrossNuma(a, b);
  return SameFabric(a, b) ? FabricLink(pcie) : PlainLink(pcie);
}

}  // namespace

std::optional<int> GlobalTopology::NodeIndex(int32_t node_id) const {
  const auto place = std::lower_bound(
      nodes_.begin(), nodes_.end(), node_id,
      [](const LocalTopology& node, int32_t wanted) { return node.node_id < wanted; });
  if (place == nodes_.end() || place->node_id != node_id) return std::nullopt;
  return static_cast<int>(place - nodes_.begin());
}

std::vector<int> GlobalTopology::OneGpuOfEachNode() const {
  std::vector<int> gpus;
  int last_node = -1;
  for (int id = 0; id < static_cast<int>(devices_.size()); ++id) {
    const int node = devices_[static_cast<size_t>(id)].node_index;
    if (device(id).kind != DeviceKind::kGpu || node == last_node) continue;
    last_node = node;
    gpus.push_back(id);
  }
  return gpus;
}

int GlobalTopology::GlobalId(int node_index, int device_index) const {
  return first_device_.at(node_index) + device_index;
}

const Device& GlobalTopology::device(int global_id) const {
  FERRY_CHECK(global_id >= 0 && global_id < static_cast<int>(devices_.size()));
  const GlobalDevice& place = devices_[global_id];
  return nodes_[place.node_index].devices[place.device_index];
}

std::string GlobalTopology::DeviceName(int global_id) const {
  const Device& named = device(global_id);
  return ferry::DeviceName(nodes_[devices_[global_id].node_index].node_id, named);
}

bool GlobalTopology::SameMachine(int node_index_a, int node_index_b) const {
  if (node_index_a == node_index_b) return true;
  const std::string& boot_id = nodes_.at(node_index_a).boot_id;
  return !boot_id.empty() && boot_id == nodes_.at(node_index_b).boot_id;
}

Link GlobalTopology::LinkBetween(int global_a, int global_b) const {
  const Device& a = device(global_a);
  const Device& b = device(global_b);
  const GlobalDevice& place_a = devices_[global_a];
  const GlobalDevice& place_b = devices_[global_b];
  const LocalTopology& node_a = nodes_[place_a.node_index];
  const LocalTopology& node_b = nodes_[place_b.node_index];
  if (place_a.node_index == place_b.node_index) {
    return node_a.LinkBetween(place_a.device_index, place_b.device_index);
  }
  if (SameMachine(place_a.node_index, place_b.node_index)) {
    return LinkOnOneMachine(node_a, a, node_b, b);
  }
  return SameFabric(a, b) ? FabricLink(LinkType::kNet) : PlainLink(LinkType::kNet);
}

absl::StatusOr<GlobalTopology> BuildGlobalTopology(absl::Span<const LocalTopology> nodes) {
  if (nodes.size() > kMaxNodes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the job has ", nodes.size(), " nodes, at most ", kMaxNodes, " are allowed (kMaxNodes)"));
  }
  GlobalTopology global;
  global.nodes_.assign(nodes.begin(), nodes.end());
  std::sort(global.nodes_.begin(), global.nodes_.end(),
            [](const LocalTopology& a, const LocalTopology& b) { return a.node_id < b.node_id; });
  FERRY_RETURN_IF_ERROR(CheckAcrossNodes(global.nodes_));
  FERRY_ASSIGN_OR_RETURN(global.partitions_, AssignPartitions(global.nodes_));
  global.counts_ = CountTopology(global.nodes_, global.partitions_);
  for (size_t node = 0; node < global.nodes_.size(); ++node) {
    global.first_device_.push_back(static_cast<int>(global.devices_.size()));
    for (size_t device = 0; device < global.nodes_[node].devices.size(); ++device) {
      global.devices_.push_back(GlobalDevice{static_cast<int>(node), static_cast<int>(device)});
    }
  }
  return global;
}

}  // namespace ferry
