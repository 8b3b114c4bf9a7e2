// SPDX-License-Identifier: Apache-2.0
// Queries of the driver and its devices; none needs a context.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/support/strict_cuda/config.h"
#include "tests/support/strict_cuda/context.h"
#include "tests/support/strict_cuda/entry.h"

namespace strict_cuda {
namespace {

struct ErrorText {
  CUresult error;
  const char* name;
  const char* text;
};

// The texts are the fake driver's own: no code may depend on the driver's wording.
constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_ERROR_UNMAP_FAILED, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed"},
    {CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {CUDA_ERROR_NOT_MAPPED, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
     "peer access has not been enabled"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* FindError(CUresult error) {
  for (const ErrorText& text : kErrors) {
    if (text.error == error) return &text;
  }
  return nullptr;
}

const DeviceConfig& ConfigOf(CUdevice device) {
  return GetConfig().devices[static_cast<size_t>(PhysicalOf(device))];
}

unsigned int PciField(const DeviceConfig& device, int field) {
  unsigned int parts[3] = {};
  std::sscanf(device.pci_bus_id.c_str(), "%x:%x:%x", &parts[0], &parts[1], &parts[2]);
  return parts[field];
}

// Attributes that are not listed are 0: unsupported.
int AttributeOf(CUdevice device, int attribute) {
  const Config& config = GetConfig();
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      return static_cast<int>(PciField(ConfigOf(device), 0));
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return static_cast<int>(PciField(ConfigOf(device), 1));
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      return static_cast<int>(PciField(ConfigOf(device), 2));
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return config.compute_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return config.compute_minor;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      return 1;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    default:
      return 0;
  }
}

constexpr int kLastAttribute = 150;

CUresult CheckDevice(const void* out, CUdevice device) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return IsDevice(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

extern "C" {

STRICT_CUDA_EXPORT CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  if (GetConfig().visible.empty()) return CUDA_ERROR_NO_DEVICE;
  CheckFork(__func__);
  if (GetConfig().init_ms > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(GetConfig().init_ms));
  }
  SetInitialized();
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const int fault = TakeFault(__func__); fault != 0) return fault;
  *version = GetConfig().driver_version;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* const found = FindError(error);
  *text = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* const found = FindError(error);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceGetCount(int* count) {
  STRICT_CUDA_ENTER();
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(GetConfig().visible.size());
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckDevice(device, ordinal); result != 0) return result;
  *device = ordinal;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckDevice(name, device); result != 0) return result;
  if (bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<size_t>(bytes), "%s", ConfigOf(device).name.c_str());
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckDevice(uuid, device); result != 0) return result;
  std::memcpy(uuid->bytes, ConfigOf(device).uuid, sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceGetPCIBusId(char* bus_id, int bytes, CUdevice device) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckDevice(bus_id, device); result != 0) return result;
  if (bytes < 13) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(bus_id, static_cast<size_t>(bytes), "%s", ConfigOf(device).pci_bus_id.c_str());
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckDevice(value, device); result != 0) return result;
  if (attribute <= 0 || attribute > kLastAttribute) return CUDA_ERROR_INVALID_VALUE;
  const auto changed = GetConfig().attributes.find(attribute);
  *value =
      changed == GetConfig().attributes.end() ? AttributeOf(device, attribute) : changed->second;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckDevice(bytes, device); result != 0) return result;
  *bytes = GetConfig().memory_bytes;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckDevice(can, device); result != 0) return result;
  if (!IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = GetConfig().peers[PhysicalOf(device)][PhysicalOf(peer)] ? 1 : 0;
  return CUDA_SUCCESS;
}

STRICT_CUDA_EXPORT CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                                    CUdevice src, CUdevice dst) {
  STRICT_CUDA_ENTER();
  if (const CUresult result = CheckDevice(value, src); result != 0) return result;
  if (!IsDevice(dst) || src == dst) return CUDA_ERROR_INVALID_DEVICE;
  const int a = PhysicalOf(src);
  const int b = PhysicalOf(dst);
  const bool nvlink = GetConfig().nvlinks[a][b] > 0 || GetConfig().switch_nvlinks > 0;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = nvlink ? 0 : 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = GetConfig().peers[a][b] ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = nvlink && GetConfig().peers[a][b] ? 1 : 0;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"

}  // namespace strict_cuda
