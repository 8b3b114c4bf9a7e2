// SPDX-License-Identifier: Apache-2.0
// The public Topology lists what the internal one holds.
#include <ferry/topology.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "api/api_access.h"
#include "topology/global_topology.h"

namespace ferry::v0 {
namespace {

DeviceInfo Describe(const ferry::Device& device, int global_id, int rank) {
  DeviceInfo info;
  info.global_id = global_id;
  info.rank = rank;
  info.device = device.kind == ferry::DeviceKind::kGpu ? Device::Gpu(device.ordinal)
                                                       : Device{DeviceKind::kHost, device.ordinal};
  info.model = device.name;
  info.uuid = device.uuid;
  info.pci_bus_id = device.pci_bus_id;
  info.compute_major = device.compute_major;
  info.compute_minor = device.compute_minor;
  info.core_count = device.core_count;
  info.memory_bytes = device.memory_bytes;
  info.numa_node = device.numa_node;
  return info;
}

}  // namespace

class Topology::Impl final {
 public:
  explicit Impl(ferry::GlobalTopology topology) : inner(std::move(topology)) {
    for (size_t i = 0; i < inner.nodes().size(); ++i) {
      NodeInfo node;
      node.rank = inner.nodes()[i].node_id;
      node.host_name = inner.nodes()[i].host_name;
      node.partition = inner.partitions()[i];
      nodes.push_back(std::move(node));
    }
    for (size_t i = 0; i < inner.devices().size(); ++i) {
      const int id = static_cast<int>(i);
      NodeInfo& node = nodes[static_cast<size_t>(inner.devices()[i].node_index)];
      node.devices.push_back(id);
      devices.push_back(Describe(inner.device(id), id, node.rank));
    }
  }

  const ferry::GlobalTopology inner;
  std::vector<NodeInfo> nodes;
  std::vector<DeviceInfo> devices;
};

Topology::Topology() {
  static const auto& empty =
      *new std::shared_ptr<const Impl>(std::make_shared<const Impl>(ferry::GlobalTopology()));
  impl_ = empty;
}

const std::vector<NodeInfo>& Topology::nodes() const { return impl_->nodes; }
const std::vector<DeviceInfo>& Topology::devices() const { return impl_->devices; }

std::optional<int> Topology::FindDevice(int rank, const Device& device) const {
  const std::optional<int> node = impl_->inner.NodeIndex(rank);
  if (!node.has_value()) return std::nullopt;
  for (const int id : impl_->nodes[static_cast<size_t>(*node)].devices) {
    if (impl_->devices[static_cast<size_t>(id)].device == device) return id;
  }
  return std::nullopt;
}

std::vector<int> Topology::OneGpuOfEachNode() const { return impl_->inner.OneGpuOfEachNode(); }

bool Topology::IsSameHost(int rank_a, int rank_b) const {
  const std::optional<int> a = impl_->inner.NodeIndex(rank_a);
  const std::optional<int> b = impl_->inner.NodeIndex(rank_b);
  return a.has_value() && b.has_value() && impl_->inner.SameMachine(*a, *b);
}

absl::StatusOr<Link> Topology::LinkBetween(int global_a, int global_b) const {
  const int count = static_cast<int>(impl_->devices.size());
  for (const int id : {global_a, global_b}) {
    if (id >= 0 && id < count) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("there is no device ", id, "; the job has ", count));
  }
  const ferry::Link link = impl_->inner.LinkBetween(global_a, global_b);
  return Link{static_cast<LinkType>(link.type), link.nvlink_count, link.bandwidth_bytes_per_s};
}

static_assert(static_cast<int>(LinkType::kLoc) == static_cast<int>(ferry::LinkType::kLoc));
static_assert(static_cast<int>(LinkType::kDis) == static_cast<int>(ferry::LinkType::kDis));

std::string ToString(LinkType type) {
  return std::string(ferry::LinkTypeName(static_cast<ferry::LinkType>(type)));
}

Topology ApiAccess::Wrap(ferry::GlobalTopology topology) {
  Topology result;
  result.impl_ = std::make_shared<const Topology::Impl>(std::move(topology));
  return result;
}

}  // namespace ferry::v0
