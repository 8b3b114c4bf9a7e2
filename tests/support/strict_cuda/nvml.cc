// SPDX-License-Identifier: Apache-2.0
// NVML for the same devices, those included that CUDA_VISIBLE_DEVICES hides.
#include <strings.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/strict_cuda/config.h"
#include "tests/support/strict_cuda/entry.h"

namespace strict_cuda {
namespace {

// Source: nvml.h.
constexpr int kSuccess = 0;
constexpr int kUninitialized = 1;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kDriverNotLoaded = 9;
constexpr int kRemoteGpu = 0;
constexpr int kRemoteSwitch = 2;
constexpr unsigned char kFabricNotSupported = 0;
constexpr unsigned char kFabricCompleted = 3;

struct PciInfo {
  char bus_id_legacy[16];
  uint32_t domain;
  uint32_t bus;
  uint32_t device;
  uint32_t pci_device_id;
  uint32_t pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

struct FabricInfo {
  unsigned char cluster_uuid[16];
  int status;
  uint32_t clique_id;
  unsigned char state;
};
static_assert(sizeof(FabricInfo) == 28);

struct FabricInfoV {
  uint32_t version;
  unsigned char cluster_uuid[16];
  int status;
  uint32_t clique_id;
  unsigned char state;
  uint32_t health_mask;
};
static_assert(sizeof(FabricInfoV) == 36);

std::atomic<int> open_count = 0;

using Device = const DeviceConfig*;

int EnterNvml(const char* symbol) {
  if (open_count == 0) return kUninitialized;
  return TakeFault(symbol);
}

int EnterNvml(const char* symbol, Device device, const void* out) {
  if (const int result = EnterNvml(symbol); result != 0) return result;
  for (const DeviceConfig& known : GetConfig().devices) {
    if (&known == device) return out == nullptr ? kInvalidArgument : kSuccess;
  }
  return kInvalidArgument;
}

// The other end of link `link` of `device`: a device, -1 for a switch, -2 for nothing. Links to
// lower devices come first.
int RemoteOf(Device device, unsigned int link) {
  const Config& config = GetConfig();
  unsigned int first = 0;
  for (int peer = 0; peer < static_cast<int>(config.devices.size()); ++peer) {
    first += static_cast<unsigned int>(config.nvlinks[device->physical][peer]);
    if (link < first) return peer;
  }
  return link < first + static_cast<unsigned int>(config.switch_nvlinks) ? -1 : -2;
}

void FillFabric(unsigned char* cluster, int* status, uint32_t* clique, unsigned char* state) {
  const int number = GetConfig().fabric_cluster;
  std::memset(cluster, 0, 16);
  cluster[0] = static_cast<unsigned char>(number);
  *status = kSuccess;
  *clique = 0;
  *state = number == 0 ? kFabricNotSupported : kFabricCompleted;
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT int nvmlInit_v2() {
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  ++open_count;
  return kSuccess;
}

STRICT_CUDA_EXPORT int nvmlShutdown() {
  if (open_count == 0) return kUninitialized;
  --open_count;
  return kSuccess;
}

STRICT_CUDA_EXPORT const char* nvmlErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "The operation was successful";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    case kDriverNotLoaded:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}

STRICT_CUDA_EXPORT int nvmlSystemGetDriverVersion(char* version, unsigned int bytes) {
  if (const int result = EnterNvml(__func__); result != 0) return result;
  if (version == nullptr) return kInvalidArgument;
  std::snprintf(version, bytes, "%s",
                FromEnvironment("STRICT_CUDA_NVML_DRIVER", "580.65.06").c_str());
  return kSuccess;
}

STRICT_CUDA_EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  if (const int result = EnterNvml(__func__); result != 0) return result;
  if (uuid == nullptr || device == nullptr) return kInvalidArgument;
  for (const DeviceConfig& known : GetConfig().devices) {
    if (known.uuid_text != uuid) continue;
    *device = &known;
    return kSuccess;
  }
  return kNotFound;
}

STRICT_CUDA_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Device* device) {
  if (const int result = EnterNvml(__func__); result != 0) return result;
  if (bus_id == nullptr || device == nullptr) return kInvalidArgument;
  unsigned int wanted[4] = {};
  if (std::sscanf(bus_id, "%x:%x:%x.%x", &wanted[0], &wanted[1], &wanted[2], &wanted[3]) != 4) {
    return kInvalidArgument;
  }
  for (const DeviceConfig& known : GetConfig().devices) {
    unsigned int own[4] = {};
    std::sscanf(known.pci_bus_id.c_str(), "%x:%x:%x.%x", &own[0], &own[1], &own[2], &own[3]);
    if (std::memcmp(wanted, own, sizeof(own)) != 0) continue;
    *device = &known;
    return kSuccess;
  }
  return kNotFound;
}

STRICT_CUDA_EXPORT int nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int* level) {
  if (const int result = EnterNvml(__func__, a, level); result != 0) return result;
  if (const int result = EnterNvml(__func__, b, level); result != 0) return result;
  *level = a == b ? 0 : GetConfig().pcie_level;
  return kSuccess;
}

STRICT_CUDA_EXPORT int nvmlDeviceGetNvLinkState(Device device, unsigned int link, int* is_active) {
  if (const int result = EnterNvml(__func__, device, is_active); result != 0) return result;
  if (link >= 18) return kInvalidArgument;
  const int remote = RemoteOf(device, link);
  if (remote == -2 && RemoteOf(device, 0) == -2) return kNotSupported;
  *is_active = remote == -2 ? 0 : 1;
  return kSuccess;
}

STRICT_CUDA_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned int link,
                                                           PciInfo* info) {
  if (const int result = EnterNvml(__func__, device, info); result != 0) return result;
  const int remote = RemoteOf(device, link);
  if (remote == -2) return kInvalidArgument;
  *info = PciInfo{};
  // NVML writes eight digits of domain.
  std::string bus_id = "0000ffff:00:00.0";
  if (remote >= 0) bus_id = "0000" + GetConfig().devices[static_cast<size_t>(remote)].pci_bus_id;
  std::snprintf(info->bus_id, sizeof(info->bus_id), "%s", bus_id.c_str());
  return kSuccess;
}

STRICT_CUDA_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned int link,
                                                           int* type) {
  if (const int result = EnterNvml(__func__, device, type); result != 0) return result;
  const int remote = RemoteOf(device, link);
  if (remote == -2) return kInvalidArgument;
  *type = remote == -1 ? kRemoteSwitch : kRemoteGpu;
  return kSuccess;
}

STRICT_CUDA_EXPORT int nvmlDeviceGetGpuFabricInfo(Device device, FabricInfo* info) {
  if (const int result = EnterNvml(__func__, device, info); result != 0) return result;
  FillFabric(info->cluster_uuid, &info->status, &info->clique_id, &info->state);
  return kSuccess;
}

STRICT_CUDA_EXPORT int nvmlDeviceGetGpuFabricInfoV(Device device, FabricInfoV* info) {
  if (const int result = EnterNvml(__func__, device, info); result != 0) return result;
  if (info->version != (sizeof(FabricInfoV) | (2u << 24))) return kInvalidArgument;
  FillFabric(info->cluster_uuid, &info->status, &info->clique_id, &info->state);
  info->health_mask = 0;
  return kSuccess;
}

}  // extern "C"

}  // namespace strict_cuda
