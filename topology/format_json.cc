// SPDX-License-Identifier: Apache-2.0
// Topologies as JSON.
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "topology/format.h"

namespace ferry {
namespace {

// Keeps keys in insertion order, for readability.
using Json = nlohmann::ordered_json;

std::string Name(absl::string_view text) { return std::string(text); }

Json ToJson(const Device& device, const std::string& name) {
  Json json = {{"device", name}, {"kind", Name(DeviceKindName(device.kind))}};
  json["ordinal"] = device.ordinal;
  json["name"] = device.name;
  json["vendor"] = device.vendor;
  json["uuid"] = device.uuid;
  json["pci_bus_id"] = device.pci_bus_id;
  json["compute_capability"] =
      device.compute_major == 0
          ? Json()
          : Json(absl::StrCat(device.compute_major, ".", device.compute_minor));
  json["core_count"] = device.core_count;
  json["memory_bytes"] = device.memory_bytes;
  json["numa_node"] = device.numa_node < 0 ? Json() : Json(device.numa_node);
  json["fabric_uuid"] = device.fabric_uuid;
  return json;
}

Json LinksToJson(const LocalTopology& node) {
  Json links = Json::array();
  for (const DeviceLink& link : node.links) {
    links.push_back(
        {{"between", {DeviceName(node.devices[link.first]), DeviceName(node.devices[link.second])}},
         {"type", Name(LinkTypeName(link.link.type))},
         {"without_nvlink", Name(LinkTypeName(link.link.pcie))},
         {"nvlink_count", link.link.nvlink_count},
         {"nvlink_switched", link.link.nvlink_switched},
         {"bandwidth_bytes_per_s", link.link.bandwidth_bytes_per_s}});
  }
  return links;
}

Json NodeToJson(const LocalTopology& node) {
  Json json = {{"node_id", node.node_id}, {"host_name", node.host_name}};
  json["boot_id"] = node.boot_id;
  json["endpoint"] = node.endpoint;
  return json;
}

// Strings from drivers may not be UTF-8; invalid bytes are replaced, since dump() throws
// otherwise.
std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string FormatJson(const LocalTopology& topology) {
  Json json = NodeToJson(topology);
  json["devices"] = Json::array();
  for (const Device& device : topology.devices) {
    json["devices"].push_back(ToJson(device, DeviceName(device)));
  }
  json["links"] = LinksToJson(topology);
  return Dump(json);
}

std::string FormatJson(const GlobalTopology& topology) {
  const TopologyCounts& counts = topology.counts();
  Json json = {{"counts",
                {{"partitions", counts.partition_count},
                 {"nodes_per_partition", counts.nodes_per_partition},
                 {"devices_per_node", counts.devices_per_node}}}};
  json["nodes"] = Json::array();
  for (size_t i = 0; i < topology.nodes().size(); ++i) {
    const LocalTopology& node = topology.nodes()[i];
    Json node_json = NodeToJson(node);
    node_json["partition"] = topology.partitions()[i];
    node_json["devices"] = Json::array();
    for (size_t device = 0; device < node.devices.size(); ++device) {
      const int id = topology.GlobalId(static_cast<int>(i), static_cast<int>(device));
      Json device_json = ToJson(node.devices[device], topology.DeviceName(id));
      device_json["global_id"] = id;
      node_json["devices"].push_back(std::move(device_json));
    }
    node_json["links"] = LinksToJson(node);
    json["nodes"].push_back(std::move(node_json));
  }
  return Dump(json);
}

}  // namespace ferry
