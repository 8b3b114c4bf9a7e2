// SPDX-License-Identifier: Apache-2.0
// The device table and the link matrix.
#include "topology/format.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "topology/device.h"
#include "topology/link.h"

namespace ferry {
namespace {

constexpr absl::string_view kSelf = "X";
constexpr absl::string_view kGap = "  ";

using Rows = std::vector<std::vector<std::string>>;

// The devices to show and a function for their links, independent of the kind of topology.
struct View {
  std::vector<std::string> names;
  std::vector<const Device*> devices;
  std::function<Link(int, int)> link;
};

// Pads columns to their widest cell, left-aligned, without trailing blanks.
std::string Aligned(const Rows& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size(), ' '), kGap);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string OrDash(absl::string_view text) { return std::string(text.empty() ? "-" : text); }

std::string MemoryText(uint64_t bytes) {
  if (bytes == 0) return "-";
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (uint64_t{1} << 30));
}

std::string DeviceTable(const View& view) {
  Rows rows = {{"device", "name", "pci bus id", "numa", "cores", "memory", "compute", "uuid"}};
  for (size_t i = 0; i < view.devices.size(); ++i) {
    const Device& device = *view.devices[i];
    rows.push_back({view.names[i], OrDash(device.name), OrDash(device.pci_bus_id),
                    device.numa_node < 0 ? "-" : absl::StrCat(device.numa_node),
                    device.core_count == 0 ? "-" : absl::StrCat(device.core_count),
                    MemoryText(device.memory_bytes),
                    device.compute_major == 0
                        ? "-"
                        : absl::StrCat(device.compute_major, ".", device.compute_minor),
                    OrDash(device.uuid)});
  }
  return Aligned(rows);
}

std::string Matrix(const View& view, size_t shown) {
  std::set<LinkType> used;
  bool counted_nvlinks = false;
  std::vector<std::string> header = {""};
  header.insert(header.end(), view.names.begin(), view.names.begin() + shown);
  Rows rows = {std::move(header)};
  for (size_t row = 0; row < shown; ++row) {
    std::vector<std::string>& cells = rows.emplace_back();
    cells.push_back(view.names[row]);
    for (size_t column = 0; column < shown; ++column) {
      if (row == column) {
        cells.emplace_back(kSelf);
        continue;
      }
      const Link link = view.link(static_cast<int>(row), static_cast<int>(column));
      used.insert(link.type);
      counted_nvlinks |= link.type == LinkType::kNvl && link.nvlink_count > 0;
      cells.push_back(LinkText(link));
    }
  }
  Rows legend = {{"", std::string(kSelf), "the device itself"}};
  if (counted_nvlinks) legend.push_back({"", "NV#", "that many NVLinks, directly or switched"});
  for (const LinkType type : used) {
    legend.push_back({"", std::string(LinkTypeName(type)), std::string(ExplainLinkType(type))});
  }
  return absl::StrCat(Aligned(rows), "\nLegend, near to far:\n", Aligned(legend));
}

std::string Format(const View& view, int max_matrix_devices) {
  if (view.devices.empty()) return "no devices\n";
  const size_t shown =
      std::min(view.devices.size(), static_cast<size_t>(std::max(1, max_matrix_devices)));
  std::string title = "Link from row device to column device";
  if (shown < view.devices.size()) {
    absl::StrAppend(&title, " (the first ", shown, " of ", view.devices.size(), " devices)");
  }
  return absl::StrCat(DeviceTable(view), "\n", title, "\n", Matrix(view, shown));
}

std::string CountText(int count) { return count < 0 ? "uneven" : absl::StrCat(count); }

}  // namespace

std::string FormatText(const LocalTopology& topology, int max_matrix_devices) {
  View view;
  for (const Device& device : topology.devices) {
    view.names.push_back(DeviceName(device));
    view.devices.push_back(&device);
  }
  view.link = [&topology](int row, int column) { return topology.LinkBetween(row, column); };
  return Format(view, max_matrix_devices);
}

std::string FormatText(const GlobalTopology& topology, int max_matrix_devices) {
  View view;
  for (size_t id = 0; id < topology.devices().size(); ++id) {
    view.names.push_back(topology.DeviceName(static_cast<int>(id)));
    view.devices.push_back(&topology.device(static_cast<int>(id)));
  }
  view.link = [&topology](int row, int column) { return topology.LinkBetween(row, column); };
  const TopologyCounts& counts = topology.counts();
  return absl::StrCat(topology.nodes().size(), " nodes; partitions ",
                      CountText(counts.partition_count), ", nodes in each ",
                      CountText(counts.nodes_per_partition), ", devices on each node ",
                      CountText(counts.devices_per_node), "\n\n", Format(view, max_matrix_devices));
}

}  // namespace ferry
