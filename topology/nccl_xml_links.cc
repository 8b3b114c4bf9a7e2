// SPDX-License-Identifier: Apache-2.0
// Computes NCCL's link types between the GPUs of a topology file.
// Source: NCCL src/graph/topo.cc (how elements become nodes and links), src/graph/paths.cc (path
// types).
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "topology/nccl_xml.h"
#include "topology/pci_bus_id.h"

namespace ferry {
namespace {

// PCI class prefixes. Source: NCCL src/graph/topo.cc, kvDictPciClass.
constexpr absl::string_view kGpuClassPrefix = "0x03";
constexpr absl::string_view kNpuClass = "0x068001";  // the NVLink bridge of POWER CPUs

// A pci element on the path from the CPU to a GPU.
struct Bridge {
  const NcclElement* pci = nullptr;
  bool flattened = false;  // the lower half of a switch whose upper half is the previous bridge
};

struct Gpu {
  const NcclElement* cpu = nullptr;
  const NcclElement* pci = nullptr;
  const NcclElement* gpu =
      nullptr;                  // null in files without gpu elements, which NCCL detects itself
  std::vector<Bridge> bridges;  // in order from the CPU
  std::string bus_id;
  absl::flat_hash_map<std::string, int> nvlinks;  // to other GPUs, by bus id
  int switch_nvlinks = 0;
};

absl::string_view Text(const NcclElement& element, absl::string_view name) {
  return element.Attribute(name).value_or("");
}

std::string BusIdOf(const NcclElement& element, absl::string_view name) {
  const absl::string_view text = Text(element, name);
  return NormalizePciBusId(text).value_or(absl::AsciiStrToLower(text));
}

bool IsGpu(const NcclElement& pci) {
  return absl::StartsWith(Text(pci, "class"), kGpuClassPrefix) ||
         std::any_of(pci.children.begin(), pci.children.end(),
                     [](const NcclElement& child) { return child.kind == NcclElementKind::kGpu; });
}

// Broadcom's PEX switches appear as two levels although every pair of ports has full bandwidth.
// Returns the generation whose upper (level 0) or lower (level 1) half the element is, or 0.
// Source: NCCL src/graph/topo.cc, getBcmGen.
int BroadcomGeneration(const NcclElement& pci, int level) {
  if (Text(pci, "vendor") != "0x1000" || Text(pci, "subsystem_vendor") != "0x1000") return 0;
  const absl::string_view device = Text(pci, "device");
  const absl::string_view subsystem = Text(pci, "subsystem_device");
  if (subsystem.size() != 6) return 0;
  if (device == "0xc010" && subsystem[2] == 'a') return 4;
  if (device == "0xc030" && subsystem[2] == (level == 0 ? '0' : '1')) return 5;
  return 0;
}

bool IsLowerHalf(const std::vector<Bridge>& above, const NcclElement& pci) {
  if (above.empty() || above.back().flattened) return false;
  const int generation = BroadcomGeneration(*above.back().pci, 0);
  return generation != 0 && generation == BroadcomGeneration(pci, 1);
}

void CollectGpus(const NcclElement& cpu, const NcclElement& parent, std::vector<Bridge>& bridges,
                 std::vector<Gpu>& gpus) {
  for (const NcclElement& pci : parent.children) {
    if (pci.kind != NcclElementKind::kPci) continue;
    if (IsGpu(pci)) {
      Gpu& gpu = gpus.emplace_back();
      gpu.cpu = &cpu;
      gpu.pci = &pci;
      gpu.bridges = bridges;
      gpu.bus_id = BusIdOf(pci, "busid");
      for (const NcclElement& child : pci.children) {
        if (child.kind == NcclElementKind::kGpu && gpu.gpu == nullptr) gpu.gpu = &child;
      }
      continue;
    }
    bridges.push_back(Bridge{&pci, IsLowerHalf(bridges, pci)});
    CollectGpus(cpu, pci, bridges, gpus);
    bridges.pop_back();
  }
}

// Classifies the NVLinks of each GPU by target. Without a class, a target that is not a GPU of the
// file counts as a switch, as NCCL assumes for switches hidden from a virtual machine.
void ReadNvlinks(std::vector<Gpu>& gpus) {
  absl::flat_hash_set<std::string> bus_ids;
  for (const Gpu& gpu : gpus) bus_ids.insert(gpu.bus_id);
  for (Gpu& gpu : gpus) {
    if (gpu.gpu == nullptr) continue;
    for (const NcclElement& nvlink : gpu.gpu->children) {
      if (nvlink.kind != NcclElementKind::kNvlink) continue;
      const int count = std::max(0, nvlink.NumberOr("count", 0));
      const absl::string_view target_class = Text(nvlink, "tclass");
      const std::string target = BusIdOf(nvlink, "target");
      const bool to_gpu = target_class.empty() ? bus_ids.contains(target)
                                               : absl::StartsWith(target_class, kGpuClassPrefix);
      if (to_gpu) {
        gpu.nvlinks[target] += count;
      } else if (!absl::StartsWith(target_class, kNpuClass)) {
        gpu.switch_nvlinks += count;
      }
    }
  }
}

// True if a pcilink joins a switch above one GPU to a switch above the other.
bool ArePcilinked(const Gpu& from, const Gpu& to) {
  for (const Bridge& bridge : from.bridges) {
    for (const NcclElement& link : bridge.pci->children) {
      if (link.kind != NcclElementKind::kPcilink) continue;
      const std::string target = BusIdOf(link, "target");
      for (const Bridge& other : to.bridges) {
        if (BusIdOf(*other.pci, "busid") == target) return true;
      }
    }
  }
  return false;
}

LinkType PciePath(const Gpu& a, const Gpu& b) {
  if (Text(*a.cpu, "host_hash") != Text(*b.cpu, "host_hash")) return LinkType::kNet;
  if (a.cpu != b.cpu) {
    return ArePcilinked(a, b) || ArePcilinked(b, a) ? LinkType::kPxb : LinkType::kSys;
  }
  size_t common = 0;
  while (common < a.bridges.size() && common < b.bridges.size() &&
         a.bridges[common].pci == b.bridges[common].pci) {
    ++common;
  }
  if (common == 0) {
    return ArePcilinked(a, b) || ArePcilinked(b, a) ? LinkType::kPxb : LinkType::kPhb;
  }
  // Below the last common switch, each further switch that is not its other half is crossed too.
  for (const Gpu* gpu : {&a, &b}) {
    for (size_t i = common; i < gpu->bridges.size(); ++i) {
      if (!gpu->bridges[i].flattened) return LinkType::kPxb;
    }
  }
  return LinkType::kPix;
}

int NvlinkCount(const Gpu& from, const Gpu& to) {
  const auto found = from.nvlinks.find(to.bus_id);
  return found == from.nvlinks.end() ? 0 : found->second;
}

Link PathBetween(const Gpu& a, const Device& device, const Gpu& b) {
  const LinkType pcie = PciePath(a, b);
  const int direct = std::max(NvlinkCount(a, b), NvlinkCount(b, a));
  const int switched = std::min(a.switch_nvlinks, b.switch_nvlinks);
  if (direct == 0 && switched == 0) return PlainLink(pcie);
  return NvLink(direct > 0 ? direct : switched, direct == 0, pcie, device.compute_major,
                device.compute_minor);
}

// True if every GPU has a distinct number.
bool HaveOrdinals(const std::vector<Gpu>& gpus) {
  std::set<int> ordinals;
  for (const Gpu& gpu : gpus) {
    const int ordinal = gpu.gpu == nullptr ? -1 : gpu.gpu->NumberOr("dev", -1);
    if (ordinal < 0 || !ordinals.insert(ordinal).second) return false;
  }
  return true;
}

Device ToDevice(const Gpu& gpu, int ordinal) {
  Device device;
  device.kind = DeviceKind::kGpu;
  device.ordinal = ordinal;
  device.pci_bus_id = gpu.bus_id;
  device.numa_node = std::max(-1, gpu.cpu->NumberOr("numaid", -1));
  if (Text(*gpu.pci, "vendor") == "0x10de") device.vendor = "NVIDIA";
  if (gpu.gpu != nullptr) {
    const int compute = std::max(0, gpu.gpu->NumberOr("sm", 0));
    device.compute_major = compute / 10;
    device.compute_minor = compute % 10;
  }
  return device;
}

}  // namespace

absl::StatusOr<LocalTopology> ToLocalTopology(const NcclTopology& topology) {
  std::vector<Gpu> gpus;
  for (const NcclElement& cpu : topology.system.children) {
    std::vector<Bridge> bridges;
    CollectGpus(cpu, cpu, bridges, gpus);
  }
  if (gpus.size() > kMaxDevicesPerNode) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the topology file has ", gpus.size(), " GPUs, at most ", kMaxDevicesPerNode, " are read"));
  }
  if (HaveOrdinals(gpus)) {
    std::stable_sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) {
      return a.gpu->NumberOr("dev", 0) < b.gpu->NumberOr("dev", 0);
    });
  }
  ReadNvlinks(gpus);
  LocalTopology local;
  local.host_name = std::string(Text(topology.system, "name"));
  const bool have_ordinals = HaveOrdinals(gpus);
  for (size_t i = 0; i < gpus.size(); ++i) {
    local.devices.push_back(
        ToDevice(gpus[i], have_ordinals ? gpus[i].gpu->NumberOr("dev", 0) : static_cast<int>(i)));
  }
  for (size_t a = 0; a < gpus.size(); ++a) {
    for (size_t b = a + 1; b < gpus.size(); ++b) {
      local.SetLink(static_cast<int>(a), static_cast<int>(b),
                    PathBetween(gpus[a], local.devices[a], gpus[b]));
    }
  }
  FERRY_RETURN_IF_ERROR(Validate(local));
  return local;
}

}  // namespace ferry
