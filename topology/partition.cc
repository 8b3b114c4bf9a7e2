// SPDX-License-Identifier: Apache-2.0
// Partitions by explicit index, NVLink fabric or boot id.
#include "topology/partition.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ferry {
namespace {

bool HasGpu(const LocalTopology& node) {
  return std::any_of(node.devices.begin(), node.devices.end(),
                     [](const Device& device) { return device.kind == DeviceKind::kGpu; });
}

bool EveryGpuIsInAFabric(absl::Span<const LocalTopology> nodes) {
  bool any_gpu = false;
  for (const LocalTopology& node : nodes) {
    for (const Device& device : node.devices) {
      if (device.kind != DeviceKind::kGpu) continue;
      if (!IsFabric(device.fabric_uuid)) return false;
      any_gpu = true;
    }
  }
  return any_gpu;
}

// Keys of machines and of fabrics are disjoint: their first letters differ.
std::string MachineKey(const LocalTopology& node) {
  return node.boot_id.empty() ? absl::StrCat("node ", node.node_id)
                              : absl::StrCat("boot ", node.boot_id);
}

std::string FabricKey(const LocalTopology& node) {
  std::set<std::string> fabrics;
  for (const Device& device : node.devices) {
    if (device.kind == DeviceKind::kGpu) fabrics.insert(device.fabric_uuid);
  }
  return absl::StrCat("fabric ", absl::StrJoin(fabrics, ","));
}

std::vector<std::string> PartitionKeys(absl::Span<const LocalTopology> nodes) {
  std::vector<std::string> keys;
  keys.reserve(nodes.size());
  if (!EveryGpuIsInAFabric(nodes)) {
    for (const LocalTopology& node : nodes) keys.push_back(MachineKey(node));
    return keys;
  }
  absl::flat_hash_map<std::string, std::string> fabric_of_machine;
  for (const LocalTopology& node : nodes) {
    if (HasGpu(node)) fabric_of_machine.try_emplace(MachineKey(node), FabricKey(node));
  }
  for (const LocalTopology& node : nodes) {
    if (HasGpu(node)) {
      keys.push_back(FabricKey(node));
      continue;
    }
    const std::string machine = MachineKey(node);
    const auto found = fabric_of_machine.find(machine);
    keys.push_back(found == fabric_of_machine.end() ? machine : found->second);
  }
  return keys;
}

}  // namespace

absl::StatusOr<std::vector<int>> AssignPartitions(absl::Span<const LocalTopology> nodes) {
  const LocalTopology* with = nullptr;
  const LocalTopology* without = nullptr;
  for (const LocalTopology& node : nodes) {
    (node.partition_index.has_value() ? with : without) = &node;
  }
  if (with != nullptr && without != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", with->node_id, " names partition ", *with->partition_index, " but node ",
        without->node_id, " names none: either every node names its partition or none does"));
  }
  std::vector<int> partitions;
  partitions.reserve(nodes.size());
  if (with != nullptr) {
    for (const LocalTopology& node : nodes) partitions.push_back(*node.partition_index);
    return partitions;
  }
  absl::flat_hash_map<std::string, int> numbers;
  for (std::string& key : PartitionKeys(nodes)) {
    const int next = static_cast<int>(numbers.size());
    partitions.push_back(numbers.try_emplace(std::move(key), next).first->second);
  }
  return partitions;
}

TopologyCounts CountTopology(absl::Span<const LocalTopology> nodes,
                             absl::Span<const int> partitions) {
  if (nodes.empty()) return TopologyCounts{0, 0, 0};
  const DeviceKind counted =
      std::any_of(nodes.begin(), nodes.end(), HasGpu) ? DeviceKind::kGpu : DeviceKind::kHost;
  std::map<int, int> nodes_of_partition;
  std::set<int> device_counts;
  for (size_t i = 0; i < nodes.size(); ++i) {
    ++nodes_of_partition[partitions[i]];
    device_counts.insert(static_cast<int>(
        std::count_if(nodes[i].devices.begin(), nodes[i].devices.end(),
                      [counted](const Device& device) { return device.kind == counted; })));
  }
  std::set<int> node_counts;
  for (const auto& [partition, node_count] : nodes_of_partition) node_counts.insert(node_count);
  if (node_counts.size() != 1 || device_counts.size() != 1) return TopologyCounts();
  return TopologyCounts{static_cast<int>(nodes_of_partition.size()), *node_counts.begin(),
                        *device_counts.begin()};
}

}  // namespace ferry
