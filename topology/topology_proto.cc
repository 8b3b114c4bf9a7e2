// SPDX-License-Identifier: Apache-2.0
// One node's topology to and from its wire form.
#include "topology/topology_proto.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "topology/hardware_proto.h"

namespace ferry {
namespace {

// Converts a wire number to a count; too large ones become the largest int, which Validate or a
// limit rejects.
int ToInt(uint32_t value) {
  return static_cast<int>(
      std::min<uint32_t>(value, static_cast<uint32_t>(std::numeric_limits<int>::max())));
}

v1::Device ToProto(const Device& device) {
  v1::Device proto;
  proto.set_kind(device.kind == DeviceKind::kGpu ? v1::DEVICE_KIND_GPU : v1::DEVICE_KIND_HOST);
  proto.set_ordinal(static_cast<uint32_t>(device.ordinal));
  proto.set_name(device.name);
  proto.set_vendor(device.vendor);
  proto.set_uuid(device.uuid);
  proto.set_pci_bus_id(device.pci_bus_id);
  proto.set_compute_major(static_cast<uint32_t>(device.compute_major));
  proto.set_compute_minor(static_cast<uint32_t>(device.compute_minor));
  proto.set_core_count(static_cast<uint32_t>(device.core_count));
  proto.set_memory_bytes(device.memory_bytes);
  proto.set_numa_node_plus_one(static_cast<uint32_t>(device.numa_node + 1));
  proto.set_fabric_uuid(device.fabric_uuid);
  return proto;
}

absl::StatusOr<Device> FromProto(const v1::Device& proto) {
  if (proto.kind() != v1::DEVICE_KIND_HOST && proto.kind() != v1::DEVICE_KIND_GPU) {
    return absl::InvalidArgumentError(
        "a device of unknown kind: the sender is newer than this Ferry");
  }
  Device device;
  device.kind = proto.kind() == v1::DEVICE_KIND_GPU ? DeviceKind::kGpu : DeviceKind::kHost;
  device.ordinal = ToInt(proto.ordinal());
  device.name = proto.name();
  device.vendor = proto.vendor();
  device.uuid = proto.uuid();
  device.pci_bus_id = proto.pci_bus_id();
  device.compute_major = ToInt(proto.compute_major());
  device.compute_minor = ToInt(proto.compute_minor());
  device.core_count = ToInt(proto.core_count());
  device.memory_bytes = proto.memory_bytes();
  device.numa_node = ToInt(proto.numa_node_plus_one()) - 1;
  device.fabric_uuid = proto.fabric_uuid();
  return device;
}

v1::Link ToProto(const DeviceLink& link) {
  v1::Link proto;
  proto.set_first(static_cast<uint32_t>(link.first));
  proto.set_second(static_cast<uint32_t>(link.second));
  proto.set_type(static_cast<v1::LinkType>(link.link.type));
  proto.set_pcie(static_cast<v1::LinkType>(link.link.pcie));
  proto.set_nvlink_count(static_cast<uint32_t>(link.link.nvlink_count));
  proto.set_nvlink_switched(link.link.nvlink_switched);
  proto.set_bandwidth_bytes_per_s(link.link.bandwidth_bytes_per_s);
  return proto;
}

DeviceLink FromProto(const v1::Link& proto) {
  DeviceLink link;
  link.first = ToInt(proto.first());
  link.second = ToInt(proto.second());
  link.link.type = static_cast<LinkType>(proto.type());
  link.link.pcie = static_cast<LinkType>(proto.pcie());
  link.link.nvlink_count = ToInt(proto.nvlink_count());
  link.link.nvlink_switched = proto.nvlink_switched();
  link.link.bandwidth_bytes_per_s = proto.bandwidth_bytes_per_s();
  return link;
}

}  // namespace

v1::Hardware HardwareToProto(const LocalTopology& topology) {
  v1::Hardware proto;
  for (const Device& device : topology.devices) *proto.add_devices() = ToProto(device);
  for (const DeviceLink& link : topology.links) *proto.add_links() = ToProto(link);
  return proto;
}

absl::StatusOr<LocalTopology> HardwareFromProto(const v1::Hardware& proto) {
  LocalTopology topology;
  for (const v1::Device& device : proto.devices()) {
    FERRY_ASSIGN_OR_RETURN(topology.devices.emplace_back(), FromProto(device));
  }
  for (const v1::Link& link : proto.links()) topology.links.push_back(FromProto(link));
  return topology;
}

v1::LocalTopology ToProto(const LocalTopology& topology) {
  v1::LocalTopology proto;
  proto.set_node_id(static_cast<uint32_t>(topology.node_id));
  proto.set_host_name(topology.host_name);
  proto.set_boot_id(topology.boot_id);
  proto.set_endpoint(topology.endpoint);
  if (topology.partition_index.has_value()) {
    proto.set_partition_index(static_cast<uint32_t>(*topology.partition_index));
  }
  v1::Hardware hardware = HardwareToProto(topology);
  proto.mutable_devices()->Swap(hardware.mutable_devices());
  proto.mutable_links()->Swap(hardware.mutable_links());
  return proto;
}

absl::StatusOr<LocalTopology> FromProto(const v1::LocalTopology& proto) {
  LocalTopology topology;
  topology.node_id = ToInt(proto.node_id());
  topology.host_name = proto.host_name();
  topology.boot_id = proto.boot_id();
  topology.endpoint = proto.endpoint();
  if (proto.has_partition_index()) topology.partition_index = ToInt(proto.partition_index());
  for (const v1::Device& device : proto.devices()) {
    FERRY_ASSIGN_OR_RETURN(topology.devices.emplace_back(), FromProto(device));
  }
  for (const v1::Link& link : proto.links()) topology.links.push_back(FromProto(link));
  FERRY_RETURN_IF_ERROR(Validate(topology));
  return topology;
}

std::string SerializeTopology(const LocalTopology& topology) {
  return ToProto(topology).SerializeAsString();
}

std::string SerializeTopology(const GlobalTopology& topology) {
  return ToProto(topology).SerializeAsString();
}

absl::StatusOr<LocalTopology> ParseLocalTopology(absl::string_view bytes) {
  v1::LocalTopology proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("these bytes are no ferry.v1.LocalTopology");
  }
  return FromProto(proto);
}

absl::StatusOr<GlobalTopology> ParseGlobalTopology(absl::string_view bytes) {
  v1::GlobalTopology proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("these bytes are no ferry.v1.GlobalTopology");
  }
  return FromProto(proto);
}

}  // namespace ferry
