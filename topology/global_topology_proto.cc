// SPDX-License-Identifier: Apache-2.0
// The whole job to and from its compact wire form: equal hardware once, the rest in columns.
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "topology/hardware_proto.h"
#include "topology/string_column_proto.h"
#include "topology/topology_proto.h"

namespace ferry {
namespace {

// The limit on links of an expanded message; on the wire equal nodes share theirs.
constexpr size_t kMaxGlobalLinks = 1 << 24;

// The part that nodes with equal hardware share.
LocalTopology WithoutIdentity(const LocalTopology& node) {
  LocalTopology common;
  common.devices = node.devices;
  common.links = node.links;
  for (Device& device : common.devices) {
    if (device.kind == DeviceKind::kGpu) {
      device.uuid.clear();
      device.fabric_uuid.clear();
    } else {
      device.memory_bytes = 0;
    }
  }
  return common;
}

struct Columns {
  std::vector<std::string> host_names;
  std::vector<std::string> boot_ids;
  std::vector<std::string> endpoints;
  std::vector<std::string> gpu_uuids;
  std::vector<std::string> gpu_fabric_uuids;
};

void SetColumn(const std::vector<std::string>& strings, v1::StringColumn* column) {
  *column = PackStrings(strings);
}

void SetColumns(const Columns& columns, v1::GlobalTopology& proto) {
  SetColumn(columns.host_names, proto.mutable_host_names());
  SetColumn(columns.boot_ids, proto.mutable_boot_ids());
  SetColumn(columns.endpoints, proto.mutable_endpoints());
  SetColumn(columns.gpu_uuids, proto.mutable_gpu_uuids());
  SetColumn(columns.gpu_fabric_uuids, proto.mutable_gpu_fabric_uuids());
}

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("global topology: ", what));
}

struct ExpandedHardware {
  LocalTopology common;
  size_t gpu_count = 0;
  size_t host_count = 0;
};

absl::StatusOr<std::vector<ExpandedHardware>> ExpandHardware(const v1::GlobalTopology& proto) {
  std::vector<ExpandedHardware> all;
  for (const v1::Hardware& hardware : proto.hardware()) {
    ExpandedHardware& expanded = all.emplace_back();
    FERRY_ASSIGN_OR_RETURN(expanded.common, HardwareFromProto(hardware));
    FERRY_RETURN_IF_ERROR(Validate(expanded.common));
    for (const Device& device : expanded.common.devices) {
      ++(device.kind == DeviceKind::kGpu ? expanded.gpu_count : expanded.host_count);
    }
  }
  return all;
}

struct Totals {
  size_t gpu_count = 0;
  size_t host_count = 0;
};

// Checks counts before expanding anything, so that a small hostile message stays small.
absl::StatusOr<Totals> CheckSizes(const v1::GlobalTopology& proto,
                                  const std::vector<ExpandedHardware>& hardware) {
  const int node_count = proto.node_id_deltas_size();
  if (static_cast<size_t>(node_count) > kMaxNodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("global topology: ", node_count, " nodes, at most ", kMaxNodes));
  }
  if (proto.hardware_indexes_size() != node_count) {
    return Bad(absl::StrCat(proto.hardware_indexes_size(), " hardware indexes for ", node_count,
                            " nodes"));
  }
  if (proto.partition_indexes_size() != 0 && proto.partition_indexes_size() != node_count) {
    return Bad(absl::StrCat(proto.partition_indexes_size(), " partition indexes for ", node_count,
                            " nodes"));
  }
  Totals totals;
  size_t link_count = 0;
  for (const uint32_t index : proto.hardware_indexes()) {
    if (index >= hardware.size()) {
      return Bad(absl::StrCat("hardware ", index, " of only ", hardware.size()));
    }
    totals.gpu_count += hardware[index].gpu_count;
    totals.host_count += hardware[index].host_count;
    link_count += hardware[index].common.links.size();
  }
  if (totals.gpu_count + totals.host_count > kMaxGlobalDevices || link_count > kMaxGlobalLinks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("global topology: ", totals.gpu_count + totals.host_count, " devices with ",
                     link_count, " links, at most ", kMaxGlobalDevices, " and ", kMaxGlobalLinks));
  }
  if (static_cast<size_t>(proto.host_memory_bytes_size()) != totals.host_count) {
    return Bad(absl::StrCat(proto.host_memory_bytes_size(), " host memories for ",
                            totals.host_count, " hosts"));
  }
  return totals;
}

absl::StatusOr<Columns> UnpackColumns(const v1::GlobalTopology& proto, const Totals& totals) {
  const size_t node_count = static_cast<size_t>(proto.node_id_deltas_size());
  constexpr size_t kMaxBytes = kMaxTopologyTextBytes;
  Columns columns;
  FERRY_ASSIGN_OR_RETURN(columns.host_names,
                         UnpackStrings(proto.host_names(), node_count, kMaxBytes, "host_names"));
  FERRY_ASSIGN_OR_RETURN(columns.boot_ids,
                         UnpackStrings(proto.boot_ids(), node_count, kMaxBytes, "boot_ids"));
  FERRY_ASSIGN_OR_RETURN(columns.endpoints,
                         UnpackStrings(proto.endpoints(), node_count, kMaxBytes, "endpoints"));
  FERRY_ASSIGN_OR_RETURN(columns.gpu_uuids, UnpackStrings(proto.gpu_uuids(), totals.gpu_count,
                                                          kMaxBytes, "gpu_uuids"));
  FERRY_ASSIGN_OR_RETURN(
      columns.gpu_fabric_uuids,
      UnpackStrings(proto.gpu_fabric_uuids(), totals.gpu_count, kMaxBytes, "gpu_fabric_uuids"));
  return columns;
}

}  // namespace

v1::GlobalTopology ToProto(const GlobalTopology& topology) {
  v1::GlobalTopology proto;
  std::map<std::string, uint32_t> hardware_numbers;
  Columns columns;
  int32_t previous_id = 0;
  for (const LocalTopology& node : topology.nodes()) {
    const v1::Hardware hardware = HardwareToProto(WithoutIdentity(node));
    const auto [number, is_new] = hardware_numbers.try_emplace(
        hardware.SerializeAsString(), static_cast<uint32_t>(hardware_numbers.size()));
    if (is_new) *proto.add_hardware() = hardware;
    proto.add_hardware_indexes(number->second);
    proto.add_node_id_deltas(static_cast<uint32_t>(node.node_id - previous_id));
    previous_id = node.node_id;
    if (node.partition_index.has_value()) {
      proto.add_partition_indexes(static_cast<uint32_t>(*node.partition_index));
    }
    columns.host_names.push_back(node.host_name);
    columns.boot_ids.push_back(node.boot_id);
    columns.endpoints.push_back(node.endpoint);
    for (const Device& device : node.devices) {
      if (device.kind == DeviceKind::kGpu) {
        columns.gpu_uuids.push_back(device.uuid);
        columns.gpu_fabric_uuids.push_back(device.fabric_uuid);
      } else {
        proto.add_host_memory_bytes(device.memory_bytes);
      }
    }
  }
  SetColumns(columns, proto);
  return proto;
}

absl::StatusOr<GlobalTopology> FromProto(const v1::GlobalTopology& proto) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<ExpandedHardware> hardware, ExpandHardware(proto));
  FERRY_ASSIGN_OR_RETURN(const Totals totals, CheckSizes(proto, hardware));
  FERRY_ASSIGN_OR_RETURN(const Columns columns, UnpackColumns(proto, totals));
  std::vector<LocalTopology> nodes;
  nodes.reserve(static_cast<size_t>(proto.node_id_deltas_size()));
  int64_t node_id = 0;
  size_t gpu = 0;
  int host = 0;
  for (int i = 0; i < proto.node_id_deltas_size(); ++i) {
    LocalTopology& node = nodes.emplace_back(hardware[proto.hardware_indexes(i)].common);
    node_id += proto.node_id_deltas(i);
    if (node_id > std::numeric_limits<int32_t>::max()) return Bad("a node id is too large");
    node.node_id = static_cast<int32_t>(node_id);
    node.host_name = columns.host_names[i];
    node.boot_id = columns.boot_ids[i];
    node.endpoint = columns.endpoints[i];
    if (proto.partition_indexes_size() > 0) {
      node.partition_index = static_cast<int32_t>(proto.partition_indexes(i));
    }
    for (Device& device : node.devices) {
      if (device.kind == DeviceKind::kGpu) {
        device.uuid = columns.gpu_uuids[gpu];
        device.fabric_uuid = columns.gpu_fabric_uuids[gpu++];
      } else {
        device.memory_bytes = proto.host_memory_bytes(host++);
      }
    }
  }
  return BuildGlobalTopology(nodes);
}

}  // namespace ferry
