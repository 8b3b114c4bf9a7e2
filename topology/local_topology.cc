// SPDX-License-Identifier: Apache-2.0
// Links, validation and comparison of one node's topology.
#include "topology/local_topology.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {
namespace {

// The position of the link of the ordered pair (first, second), or where to insert it.
template <typename Links>
auto FindLink(Links& links, int first, int second) {
  return std::lower_bound(links.begin(), links.end(), std::make_pair(first, second),
                          [](const DeviceLink& link, const std::pair<int, int>& pair) {
                            return std::make_pair(link.first, link.second) < pair;
                          });
}

absl::Status Invalid(const LocalTopology& topology, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("topology of node ", topology.node_id, ": ", what));
}

absl::Status CheckText(const LocalTopology& topology, absl::string_view field,
                       absl::string_view text) {
  if (text.size() <= kMaxTopologyTextBytes) return absl::OkStatus();
  return Invalid(topology, absl::StrCat(field, " has ", text.size(), " bytes, at most ",
                                        kMaxTopologyTextBytes, " are allowed"));
}

absl::Status CheckDevice(const LocalTopology& topology, const Device& device) {
  if (device.ordinal < 0) {
    return Invalid(topology,
                   absl::StrCat("device ", DeviceName(device), " has a negative ordinal"));
  }
  const std::pair<absl::string_view, absl::string_view> texts[] = {
      {"name", device.name},
      {"vendor", device.vendor},
      {"uuid", device.uuid},
      {"pci_bus_id", device.pci_bus_id},
      {"fabric_uuid", device.fabric_uuid}};
  for (const auto& [field, text] : texts) {
    FERRY_RETURN_IF_ERROR(CheckText(topology, absl::StrCat(DeviceName(device), ": ", field), text));
  }
  const std::pair<absl::string_view, int64_t> numbers[] = {
      {"compute capability", std::min(device.compute_major, device.compute_minor)},
      {"core count", device.core_count},
      {"NUMA node", int64_t{device.numa_node} + 1}};
  for (const auto& [field, number] : numbers) {
    if (number < 0) {
      return Invalid(topology, absl::StrCat(DeviceName(device), " has a negative ", field));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDevices(const LocalTopology& topology) {
  if (topology.devices.size() > kMaxDevicesPerNode) {
    return Invalid(topology, absl::StrCat(topology.devices.size(), " devices, at most ",
                                          kMaxDevicesPerNode, " are allowed"));
  }
  absl::flat_hash_set<std::string> names;
  absl::flat_hash_set<absl::string_view> uuids;
  for (const Device& device : topology.devices) {
    FERRY_RETURN_IF_ERROR(CheckDevice(topology, device));
    if (!names.insert(DeviceName(device)).second) {
      return Invalid(topology, absl::StrCat("device ", DeviceName(device), " appears twice"));
    }
    if (!device.uuid.empty() && !uuids.insert(device.uuid).second) {
      return Invalid(topology,
                     absl::StrCat("UUID ", device.uuid, " appears twice, the second time on ",
                                  DeviceName(device)));
    }
  }
  return absl::OkStatus();
}

bool IsLinkType(LinkType type) { return type >= LinkType::kLoc && type <= LinkType::kDis; }

absl::Status CheckLinks(const LocalTopology& topology) {
  const int device_count = static_cast<int>(topology.devices.size());
  const DeviceLink* previous = nullptr;
  for (const DeviceLink& link : topology.links) {
    const std::string name = absl::StrCat("link ", link.first, "-", link.second);
    if (link.first < 0 || link.second >= device_count) {
      return Invalid(topology,
                     absl::StrCat(name, " joins no devices: there are ", device_count, " of them"));
    }
    if (link.first >= link.second) {
      return Invalid(topology, absl::StrCat(name, " does not name the smaller index first"));
    }
    if (previous != nullptr && std::make_pair(previous->first, previous->second) >=
                                   std::make_pair(link.first, link.second)) {
      return Invalid(topology, absl::StrCat(name, " comes after link ", previous->first, "-",
                                            previous->second));
    }
    if (!IsLinkType(link.link.type) || !IsLinkType(link.link.pcie)) {
      return Invalid(topology, absl::StrCat(name, " is of an unknown type"));
    }
    if (link.link.nvlink_count < 0) {
      return Invalid(topology, absl::StrCat(name, " has a negative number of NVLinks"));
    }
    previous = &link;
  }
  return absl::OkStatus();
}

std::string DescribeChange(absl::string_view field, absl::string_view before,
                           absl::string_view now) {
  return absl::StrCat(field, ": \"", before, "\" before, \"", now, "\" now");
}

std::string DescribePartition(const std::optional<int32_t>& partition) {
  return partition.has_value() ? absl::StrCat(*partition) : "none";
}

}  // namespace

void LocalTopology::SetLink(int first, int second, const Link& link) {
  if (first > second) std::swap(first, second);
  FERRY_CHECK(first >= 0 && first < second && second < static_cast<int>(devices.size()));
  const auto place = FindLink(links, first, second);
  if (place != links.end() && place->first == first && place->second == second) {
    place->link = link;
  } else {
    links.insert(place, DeviceLink{first, second, link});
  }
}

Link LocalTopology::LinkBetween(int first, int second) const {
  if (first == second) return PlainLink(LinkType::kLoc);
  if (first > second) std::swap(first, second);
  const auto place = FindLink(links, first, second);
  if (place == links.end() || place->first != first || place->second != second) return Link();
  return place->link;
}

absl::Status Validate(const LocalTopology& topology) {
  if (topology.node_id < 0) return Invalid(topology, "the node id is negative");
  if (topology.partition_index.value_or(0) < 0) {
    return Invalid(topology,
                   absl::StrCat("partition index ", *topology.partition_index, " is negative"));
  }
  FERRY_RETURN_IF_ERROR(CheckText(topology, "host_name", topology.host_name));
  FERRY_RETURN_IF_ERROR(CheckText(topology, "boot_id", topology.boot_id));
  FERRY_RETURN_IF_ERROR(CheckText(topology, "endpoint", topology.endpoint));
  FERRY_RETURN_IF_ERROR(CheckDevices(topology));
  return CheckLinks(topology);
}

std::string DescribeDifference(const LocalTopology& before, const LocalTopology& now) {
  if (before == now) return "";
  if (before.node_id != now.node_id) {
    return absl::StrCat("node id: ", before.node_id, " before, ", now.node_id, " now");
  }
  if (before.host_name != now.host_name) {
    return DescribeChange("host name", before.host_name, now.host_name);
  }
  if (before.boot_id != now.boot_id) return DescribeChange("boot id", before.boot_id, now.boot_id);
  if (before.endpoint != now.endpoint) {
    return DescribeChange("endpoint", before.endpoint, now.endpoint);
  }
  if (before.partition_index != now.partition_index) {
    return DescribeChange("partition index", DescribePartition(before.partition_index),
                          DescribePartition(now.partition_index));
  }
  if (before.devices.size() != now.devices.size()) {
    return absl::StrCat("devices: ", before.devices.size(), " before, ", now.devices.size(),
                        " now");
  }
  for (size_t i = 0; i < before.devices.size(); ++i) {
    if (before.devices[i] == now.devices[i]) continue;
    return DescribeChange(absl::StrCat("device ", i), ToString(before.devices[i]),
                          ToString(now.devices[i]));
  }
  const int device_count = static_cast<int>(now.devices.size());
  for (int first = 0; first < device_count; ++first) {
    for (int second = first + 1; second < device_count; ++second) {
      const Link was = before.LinkBetween(first, second);
      const Link is = now.LinkBetween(first, second);
      if (was == is) continue;
      const std::string field = absl::StrCat("link ", DeviceName(now.devices[first]), " to ",
                                             DeviceName(now.devices[second]));
      if (LinkText(was) != LinkText(is)) return DescribeChange(field, LinkText(was), LinkText(is));
      return absl::StrCat(field, ": other details");
    }
  }
  return "links: the same, but some unknown ones are listed";
}

std::ostream& operator<<(std::ostream& out, const LocalTopology& topology) {
  out << "node " << topology.node_id << " on " << topology.host_name << " (boot "
      << topology.boot_id << ") at " << topology.endpoint << ", partition "
      << DescribePartition(topology.partition_index) << "\n";
  for (const Device& device : topology.devices) out << "  " << device << "\n";
  for (const DeviceLink& link : topology.links) {
    out << "  " << link.first << "-" << link.second << " " << link.link << "\n";
  }
  return out;
}

}  // namespace ferry
