// SPDX-License-Identifier: Apache-2.0
// Names and printing of devices.
#include "topology/device.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ferry {

absl::string_view DeviceKindName(DeviceKind kind) {
  return kind == DeviceKind::kHost ? "host" : "gpu";
}

std::optional<DeviceKind> ParseDeviceKind(absl::string_view name) {
  if (name == "host") return DeviceKind::kHost;
  if (name == "gpu") return DeviceKind::kGpu;
  return std::nullopt;
}

std::string DeviceName(const Device& device) {
  return absl::StrCat(DeviceKindName(device.kind), ":", device.ordinal);
}

std::string DeviceName(int32_t node_id, const Device& device) {
  return absl::StrCat("node", node_id, "/", DeviceName(device));
}

bool IsFabric(absl::string_view fabric_uuid) {
  const absl::string_view cluster = fabric_uuid.substr(0, fabric_uuid.find('/'));
  return std::any_of(cluster.begin(), cluster.end(), [](char c) { return c != '0' && c != '-'; });
}

std::string ToString(const Device& device) {
  std::string text = DeviceName(device);
  const auto append = [&text](absl::string_view label, absl::string_view value) {
    if (!value.empty()) absl::StrAppend(&text, " ", label, value);
  };
  append("", device.vendor);
  append("", device.name);
  append("", device.pci_bus_id);
  append("", device.uuid);
  if (device.compute_major > 0) {
    absl::StrAppend(&text, " sm_", device.compute_major, device.compute_minor);
  }
  absl::StrAppend(&text, " cores ", device.core_count, " memory ", device.memory_bytes, " numa ",
                  device.numa_node);
  append("fabric ", device.fabric_uuid);
  return text;
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << ToString(device);
}

}  // namespace ferry
