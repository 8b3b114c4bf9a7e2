// SPDX-License-Identifier: Apache-2.0
// NVML queries of NVLinks, common PCIe ancestors and fabrics.
#include "gpu/nvml/links.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "topology/pci_bus_id.h"

namespace ferry::nvml {
namespace {

constexpr int kFeatureEnabled = 1;  // NVML_FEATURE_ENABLED

struct Gpu {
  Device handle = nullptr;                        // null if NVML does not find it
  absl::flat_hash_map<std::string, int> nvlinks;  // to other GPUs, by bus id
  int switch_nvlinks = 0;
};

LinkType ToLinkType(int level) {
  if (level <= kSingle) return LinkType::kPix;
  if (level <= kMultiple) return LinkType::kPxb;
  if (level <= kHostBridge) return LinkType::kPhb;
  if (level <= kNode) return LinkType::kNode;
  return LinkType::kSys;
}

// Returns cluster UUID and clique in JAX's form, or empty: not in a fabric, still joining one, or
// an NVML too old to report it.
std::string FabricText(const unsigned char (&cluster)[16], uint32_t clique, Result status,
                       unsigned char state) {
  if (state != kFabricCompleted || status != kSuccess) return "";
  std::string uuid = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(cluster), sizeof(cluster)));
  for (const size_t dash : {8, 13, 18, 23}) uuid.insert(dash, "-");
  return IsFabric(uuid) ? absl::StrCat(uuid, "/", clique) : "";
}

// Used for one discovery.
class Asker final {
 public:
  explicit Asker(const Nvml& nvml) : nvml_(nvml), table_(nvml.table()) {}

  const absl::Status& first_error() const { return first_error_; }

  Gpu Find(const ferry::Device& device) {
    Gpu gpu;
    Result result = table_.device_get_handle_by_uuid(device.uuid.c_str(), &gpu.handle);
    if (result != kSuccess) {
      result = table_.device_get_handle_by_pci_bus_id(device.pci_bus_id.c_str(), &gpu.handle);
    }
    if (!Succeeded(result, absl::StrCat("nvmlDeviceGetHandleByPciBusId_v2 ", device.pci_bus_id))) {
      gpu.handle = nullptr;
    }
    return gpu;
  }

  std::string Fabric(const Gpu& gpu) {
    if (table_.device_get_gpu_fabric_info_v != nullptr) {
      FabricInfoV2 info = {};
      info.version = kFabricInfoV2Version;
      if (!Answered(table_.device_get_gpu_fabric_info_v(gpu.handle, &info),
                    "nvmlDeviceGetGpuFabricInfoV")) {
        return "";
      }
      return FabricText(info.cluster_uuid, info.clique_id, info.status, info.state);
    }
    if (table_.device_get_gpu_fabric_info == nullptr) return "";
    FabricInfo info = {};
    if (!Answered(table_.device_get_gpu_fabric_info(gpu.handle, &info),
                  "nvmlDeviceGetGpuFabricInfo")) {
      return "";
    }
    return FabricText(info.cluster_uuid, info.clique_id, info.status, info.state);
  }

  // Counts the active NVLinks of `gpu` by their remote device.
  void CountNvlinks(Gpu& gpu) {
    for (unsigned int link = 0; link < kMaxNvLinks; ++link) {
      int active = 0;
      // Unsupported without NVLinks, invalid past the last one: neither is an error.
      if (!Answered(table_.device_get_nvlink_state(gpu.handle, link, &active),
                    "nvmlDeviceGetNvLinkState")) {
        continue;
      }
      if (active != kFeatureEnabled) continue;
      const std::optional<std::string> peer = PeerGpu(gpu, link);
      if (peer.has_value()) {
        ++gpu.nvlinks[*peer];
      } else {
        ++gpu.switch_nvlinks;
      }
    }
  }

  LinkType CommonAncestor(const Gpu& a, const Gpu& b) {
    int level = 0;
    return Answered(table_.device_get_topology_common_ancestor(a.handle, b.handle, &level),
                    "nvmlDeviceGetTopologyCommonAncestor")
               ? ToLinkType(level)
               : LinkType::kDis;
  }

 private:
  // Returns the bus id of the GPU at the remote end, or nullopt for a switch. A GPU that is not
  // visible in a virtual machine is treated as a switch, as in NCCL.
  std::optional<std::string> PeerGpu(const Gpu& gpu, unsigned int link) {
    int type = kRemoteUnknown;
    if (table_.device_get_nvlink_remote_device_type != nullptr &&
        table_.device_get_nvlink_remote_device_type(gpu.handle, link, &type) == kSuccess &&
        type == kRemoteSwitch) {
      return std::nullopt;
    }
    PciInfo info = {};
    if (table_.device_get_nvlink_remote_pci_info(gpu.handle, link, &info) != kSuccess) {
      return std::nullopt;
    }
    info.bus_id[sizeof(info.bus_id) - 1] = '\0';
    const std::optional<std::string> bus_id = NormalizePciBusId(info.bus_id);
    Device peer = nullptr;
    if (!bus_id.has_value() ||
        table_.device_get_handle_by_pci_bus_id(bus_id->c_str(), &peer) != kSuccess) {
      return std::nullopt;
    }
    return bus_id;
  }

  // Returns whether the call has a result; "not supported" and similar have none, but are not
  // errors.
  bool Answered(Result result, absl::string_view call) {
    if (result == kErrorNotSupported || result == kErrorInvalidArgument ||
        result == kErrorNotFound) {
      return false;
    }
    return Succeeded(result, call);
  }

  bool Succeeded(Result result, absl::string_view call) {
    absl::Status status = nvml_.Check(result, call);
    if (first_error_.ok()) first_error_ = status;
    return status.ok();
  }

  const Nvml& nvml_;
  const NvmlTable& table_;
  absl::Status first_error_;
};

int NvlinkCount(const Gpu& from, const std::string& bus_id) {
  const auto found = from.nvlinks.find(bus_id);
  return found == from.nvlinks.end() ? 0 : found->second;
}

}  // namespace

absl::Status AddLinks(const Nvml& nvml, absl::Span<ferry::Device> gpus,
                      std::vector<DeviceLink>& links) {
  Asker asker(nvml);
  std::vector<Gpu> answers;
  for (ferry::Device& device : gpus) {
    Gpu& gpu = answers.emplace_back(asker.Find(device));
    if (gpu.handle == nullptr) continue;
    device.fabric_uuid = asker.Fabric(gpu);
    asker.CountNvlinks(gpu);
  }
  for (size_t a = 0; a < gpus.size(); ++a) {
    for (size_t b = a + 1; b < gpus.size(); ++b) {
      if (answers[a].handle == nullptr || answers[b].handle == nullptr) continue;
      const LinkType pcie = asker.CommonAncestor(answers[a], answers[b]);
      const int direct = std::max(NvlinkCount(answers[a], gpus[b].pci_bus_id),
                                  NvlinkCount(answers[b], gpus[a].pci_bus_id));
      const int switched = std::min(answers[a].switch_nvlinks, answers[b].switch_nvlinks);
      Link link = PlainLink(pcie);
      if (direct > 0 || switched > 0) {
        link = NvLink(direct > 0 ? direct : switched, direct == 0, pcie, gpus[a].compute_major,
                      gpus[a].compute_minor);
      }
      if (link.type == LinkType::kDis) continue;
      links.push_back(DeviceLink{static_cast<int>(a), static_cast<int>(b), link});
    }
  }
  return asker.first_error();
}

}  // namespace ferry::nvml
