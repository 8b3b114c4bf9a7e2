// SPDX-License-Identifier: Apache-2.0
// Topologies as Graphviz graphs.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "topology/format.h"

namespace ferry {
namespace {

// Escapes a Graphviz string: only quotes and backslashes need it.
std::string Dot(absl::string_view text) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", " "}}), "\"");
}

std::string DotId(const LocalTopology& node, const Device& device) {
  return Dot(DeviceName(node.node_id, device));
}

void AppendNode(const LocalTopology& node, std::string& text) {
  const std::string label = absl::StrCat(
      "node", node.node_id, node.host_name.empty() ? "" : absl::StrCat(" ", node.host_name));
  absl::StrAppend(&text, "  subgraph ", Dot(absl::StrCat("cluster_", node.node_id)), " {\n");
  absl::StrAppend(&text, "    label=", Dot(label), ";\n");
  for (const Device& device : node.devices) {
    const std::string device_label =
        absl::StrCat(DeviceName(device), device.name.empty() ? "" : absl::StrCat(" ", device.name));
    absl::StrAppend(&text, "    ", DotId(node, device), " [label=", Dot(device_label), "];\n");
  }
  for (const DeviceLink& link : node.links) {
    absl::StrAppend(&text, "    ", DotId(node, node.devices[link.first]), " -- ",
                    DotId(node, node.devices[link.second]), " [label=", Dot(LinkText(link.link)),
                    "];\n");
  }
  absl::StrAppend(&text, "  }\n");
}

}  // namespace

std::string FormatDot(const LocalTopology& topology) {
  std::string text = "graph topology {\n";
  AppendNode(topology, text);
  return absl::StrCat(text, "}\n");
}

std::string FormatDot(const GlobalTopology& topology) {
  std::string text = "graph topology {\n  network [shape=ellipse];\n";
  for (const LocalTopology& node : topology.nodes()) {
    AppendNode(node, text);
    if (!node.devices.empty()) {
      absl::StrAppend(&text, "  ", DotId(node, node.devices[0]), " -- network [label=\"NET\"];\n");
    }
  }
  return absl::StrCat(text, "}\n");
}

}  // namespace ferry
