// SPDX-License-Identifier: Apache-2.0
// The types and constants of NVML's ABI that Ferry uses, declared here so that no NVIDIA header is
// needed to build. Source: NVML API reference; the layouts are fixed by the suffix of the function
// that takes them.
#ifndef FERRY_GPU_NVML_NVML_TYPES_H_
#define FERRY_GPU_NVML_NVML_TYPES_H_

#include <cstdint>

namespace ferry::nvml {

using Result = int;  // nvmlReturn_t
struct DeviceHandle;
using Device = DeviceHandle*;  // nvmlDevice_t

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorUninitialized = 1;
inline constexpr Result kErrorInvalidArgument = 2;
inline constexpr Result kErrorNotSupported = 3;
inline constexpr Result kErrorNotFound = 6;
inline constexpr Result kErrorDriverNotLoaded = 9;

// nvmlGpuTopologyLevel_t: the nearest common ancestor of two GPUs.
enum TopologyLevel : int {
  kInternal = 0,     // on one board
  kSingle = 10,      // one PCIe switch
  kMultiple = 20,    // several, without the host bridge
  kHostBridge = 30,  // one host bridge
  kNode = 40,        // several host bridges of one NUMA node
  kSystem = 50,      // several NUMA nodes
};

struct PciInfo {  // nvmlPciInfo_t since its third version
  char bus_id_legacy[16];
  uint32_t domain;
  uint32_t bus;
  uint32_t device;
  uint32_t pci_device_id;
  uint32_t pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

// nvmlIntNvLinkDeviceType_t.
enum NvLinkRemoteType : int {
  kRemoteGpu = 0,
  kRemoteIbmNpu = 1,
  kRemoteSwitch = 2,
  kRemoteUnknown = 255
};

// More NVLinks than any GPU has (18 on Hopper and Blackwell); querying one that does not exist is
// harmless.
inline constexpr unsigned int kMaxNvLinks = 64;

inline constexpr unsigned char kFabricCompleted = 3;  // NVML_GPU_FABRIC_STATE_COMPLETED

struct FabricInfo {  // nvmlGpuFabricInfo_t
  unsigned char cluster_uuid[16];
  Result status;
  uint32_t clique_id;
  unsigned char state;
};
static_assert(sizeof(FabricInfo) == 28);

struct FabricInfoV2 {  // nvmlGpuFabricInfo_v2_t
  uint32_t version;
  unsigned char cluster_uuid[16];
  Result status;
  uint32_t clique_id;
  unsigned char state;
  uint32_t health_mask;
};
static_assert(sizeof(FabricInfoV2) == 36);

// NVML's versioned structs carry their size and version.
inline constexpr uint32_t kFabricInfoV2Version = sizeof(FabricInfoV2) | (2u << 24);

}  // namespace ferry::nvml

#endif  // FERRY_GPU_NVML_NVML_TYPES_H_
