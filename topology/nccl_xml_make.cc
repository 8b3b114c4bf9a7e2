// SPDX-License-Identifier: Apache-2.0
// Generates a topology file from the link types between the GPUs of a node.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "topology/nccl_xml.h"

namespace ferry {
namespace {

// PCI classes: a 3D controller, a PCI bridge, an NVSwitch.
constexpr absl::string_view kGpuClass = "0x030200";
constexpr absl::string_view kBridgeClass = "0x060400";
constexpr absl::string_view kSwitchClass = "0x068000";
// NCCL's placeholder for an NVSwitch that it cannot see. Source: NCCL src/graph/xml.cc.
constexpr absl::string_view kUnseenSwitch = "fffffff:ffff:ff";

using Members = std::vector<int>;  // indexes of devices

// One use per topology.
class Maker final {
 public:
  explicit Maker(const LocalTopology& local) : local_(local) {}

  absl::StatusOr<NcclTopology> Run() {
    Members gpus;
    absl::flat_hash_map<std::string, std::string> names;
    for (size_t i = 0; i < local_.devices.size(); ++i) {
      const Device& device = local_.devices[i];
      if (device.kind != DeviceKind::kGpu) continue;
      if (device.pci_bus_id.empty()) {
        return absl::FailedPreconditionError(
            absl::StrCat("the PCI bus id of ", DeviceName(device), " is not known"));
      }
      const auto [first, is_new] = names.try_emplace(device.pci_bus_id, DeviceName(device));
      if (!is_new) {
        return absl::FailedPreconditionError(
            absl::StrCat(first->second, " and ", DeviceName(device), " are one PCI device, ",
                         device.pci_bus_id));
      }
      gpus.push_back(static_cast<int>(i));
    }
    NcclTopology topology;
    topology.system.kind = NcclElementKind::kSystem;
    topology.system.attributes.push_back({"version", "1"});
    if (!local_.host_name.empty()) {
      topology.system.attributes.push_back(
          {"name", local_.host_name.substr(0, kMaxNcclXmlTextBytes)});
    }
    for (const auto& [numa_node, members] : ByNumaNode(gpus)) {
      topology.system.children.push_back(Cpu(numa_node, members));
    }
    return topology;
  }

 private:
  // One cpu element per NUMA node; if none is known, one per group connected nearer than SYS.
  std::map<int, Members> ByNumaNode(const Members& gpus) const {
    std::map<int, Members> groups;
    bool known = false;
    for (const int gpu : gpus) known |= local_.devices[gpu].numa_node >= 0;
    if (known) {
      for (const int gpu : gpus) groups[local_.devices[gpu].numa_node].push_back(gpu);
      return groups;
    }
    int next = 0;
    for (Members& group : Groups(gpus, LinkType::kNode)) groups[next++] = std::move(group);
    return groups;
  }

  // Splits `members` into groups whose members are connected, transitively, by PCIe links of type
  // `rung` or nearer.
  std::vector<Members> Groups(const Members& members, LinkType rung) const {
    std::vector<Members> groups;
    for (const int member : members) {
      Members merged;
      std::vector<Members> others;
      for (Members& group : groups) {
        bool near = false;
        for (const int other : group) {
          near |= !IsNearer(rung, local_.LinkBetween(member, other).pcie);
        }
        if (near) {
          merged.insert(merged.end(), group.begin(), group.end());
        } else {
          others.push_back(std::move(group));
        }
      }
      merged.push_back(member);
      others.push_back(std::move(merged));
      groups = std::move(others);
    }
    return groups;
  }

  NcclElement Cpu(int numa_node, const Members& members) {
    NcclElement cpu;
    cpu.kind = NcclElementKind::kCpu;
    cpu.attributes.push_back({"numaid", absl::StrCat(numa_node)});
    for (const Members& tree : Groups(members, LinkType::kPxb)) {
      const std::vector<Members> switches = Groups(tree, LinkType::kPix);
      if (switches.size() == 1) {
        AddSwitch(switches[0], cpu);
        continue;
      }
      NcclElement outer = Bridge();
      for (const Members& members_of_switch : switches) {
        NcclElement inner = Bridge();
        for (const int gpu : members_of_switch) inner.children.push_back(Pci(gpu));
        outer.children.push_back(std::move(inner));
      }
      cpu.children.push_back(std::move(outer));
    }
    return cpu;
  }

  // A GPU without neighbours needs no switch.
  void AddSwitch(const Members& members, NcclElement& cpu) {
    if (members.size() == 1) {
      cpu.children.push_back(Pci(members[0]));
      return;
    }
    NcclElement bridge = Bridge();
    for (const int gpu : members) bridge.children.push_back(Pci(gpu));
    cpu.children.push_back(std::move(bridge));
  }

  NcclElement Bridge() {
    constexpr int kDevicesPerBus = 31;
    NcclElement bridge;
    bridge.kind = NcclElementKind::kPci;
    bridge.attributes.push_back(
        {"busid", absl::StrFormat("ffff:%02x:%02x.0", 0xff - bridge_count_ / kDevicesPerBus,
                                  1 + bridge_count_ % kDevicesPerBus)});
    bridge.attributes.push_back({"class", std::string(kBridgeClass)});
    ++bridge_count_;
    return bridge;
  }

  NcclElement Pci(int index) const {
    const Device& device = local_.devices[index];
    NcclElement pci;
    pci.kind = NcclElementKind::kPci;
    pci.attributes = {{"busid", device.pci_bus_id}, {"class", std::string(kGpuClass)}};
    if (device.vendor == "NVIDIA") pci.attributes.push_back({"vendor", "0x10de"});
    NcclElement gpu;
    gpu.kind = NcclElementKind::kGpu;
    gpu.attributes.push_back({"dev", absl::StrCat(device.ordinal)});
    if (device.compute_major > 0) {
      gpu.attributes.push_back(
          {"sm", absl::StrCat(device.compute_major * 10 + device.compute_minor)});
    }
    AddNvlinks(index, gpu);
    pci.children.push_back(std::move(gpu));
    return pci;
  }

  void AddNvlinks(int index, NcclElement& gpu) const {
    int switched = 0;
    for (size_t other = 0; other < local_.devices.size(); ++other) {
      const Link link = local_.LinkBetween(index, static_cast<int>(other));
      if (link.nvlink_count == 0) continue;
      if (link.nvlink_switched) {
        switched = std::max(switched, link.nvlink_count);
      } else {
        gpu.children.push_back(
            Nvlink(local_.devices[other].pci_bus_id, link.nvlink_count, kGpuClass));
      }
    }
    if (switched > 0) gpu.children.push_back(Nvlink(kUnseenSwitch, switched, kSwitchClass));
  }

  static NcclElement Nvlink(absl::string_view target, int count, absl::string_view target_class) {
    NcclElement nvlink;
    nvlink.kind = NcclElementKind::kNvlink;
    nvlink.attributes = {{"target", std::string(target)},
                         {"count", absl::StrCat(count)},
                         {"tclass", std::string(target_class)}};
    return nvlink;
  }

  const LocalTopology& local_;
  int bridge_count_ = 0;
};

}  // namespace

absl::StatusOr<NcclTopology> ToNcclTopology(const LocalTopology& topology) {
  FERRY_RETURN_IF_ERROR(Validate(topology));
  return Maker(topology).Run();
}

}  // namespace ferry
