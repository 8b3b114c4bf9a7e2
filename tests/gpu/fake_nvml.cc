// SPDX-License-Identifier: Apache-2.0
// A strict fake of libnvidia-ml.so.1 with the two GPUs of fake_cuda.cc and a third that CUDA does
// not show. Built with FAKE_NVML_OLD it lacks later functions; FERRY_FAKE_NVML_* change its
// results.
#include <strings.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu/nvml/nvml_types.h"

namespace {

using namespace ferry::nvml;  // NOLINT: the whole file speaks this vocabulary

int open_count = 0;
char handles[3];  // only their addresses matter

int FromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

Device Handle(int index) { return reinterpret_cast<Device>(&handles[index]); }

int IndexOf(Device device) {
  for (int i = 0; i < 3; ++i) {
    if (device == Handle(i)) return i;
  }
  return -1;
}

Result CheckUse(Device device, const void* out) {
  if (open_count == 0) return kErrorUninitialized;
  return IndexOf(device) < 0 || out == nullptr ? kErrorInvalidArgument : kSuccess;
}

// "direct": links 0 and 1 of either GPU lead to the other; link 2 to the hidden GPU; link 3 is
// down. "switch": links 0 to 3 lead to a switch. Otherwise there are none.
bool Mode(const char* name) {
  const char* const text = std::getenv("FERRY_FAKE_NVML_LINKS");
  return text != nullptr && std::strcmp(text, name) == 0;
}

void FillFabric(unsigned char* cluster, Result* status, uint32_t* clique, unsigned char* state) {
  std::memset(cluster, 0, 16);
  cluster[0] = static_cast<unsigned char>(FromEnvironment("FERRY_FAKE_NVML_CLUSTER", 0));
  *status = kSuccess;
  *clique = 7;
  *state =
      static_cast<unsigned char>(FromEnvironment("FERRY_FAKE_NVML_FABRIC_STATE", kFabricCompleted));
}

}  // namespace

extern "C" {

Result nvmlInit_v2() {
  const int result = FromEnvironment("FERRY_FAKE_NVML_INIT_RESULT", 0);
  if (result == 0) ++open_count;
  return result;
}

Result nvmlShutdown() {
  if (open_count == 0) std::abort();
  --open_count;
  return 0;
}

int ferry_fake_nvml_open_count() { return open_count; }

const char* nvmlErrorString(Result result) {
  return result == kErrorDriverNotLoaded ? "Driver Not Loaded" : "Other";
}

Result nvmlSystemGetDriverVersion(char* version, unsigned int bytes) {
  if (open_count == 0) return kErrorUninitialized;
  const char* const text = std::getenv("FERRY_FAKE_NVML_DRIVER");
  std::snprintf(version, bytes, "%s", text == nullptr ? "550.54.15" : text);
  return kSuccess;
}

Result nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  if (open_count == 0) return kErrorUninitialized;
  if (FromEnvironment("FERRY_FAKE_NVML_NO_UUIDS", 0) != 0) return kErrorNotFound;
  for (int i = 0; i < 2; ++i) {
    char expected[64];
    std::snprintf(expected, sizeof(expected), "GPU-00112233-4455-6677-8899-aabbccddee%02d", i);
    if (std::strcmp(uuid, expected) == 0) {
      *device = Handle(i);
      return kSuccess;
    }
  }
  return kErrorNotFound;
}

Result nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Device* device) {
  if (open_count == 0) return kErrorUninitialized;
  if (FromEnvironment("FERRY_FAKE_NVML_NO_GPUS", 0) != 0) return kErrorNotFound;
  for (int i = 0; i < 3; ++i) {
    char expected[32];
    std::snprintf(expected, sizeof(expected), "0000:%02x:00.0", 0x1a + i);
    if (strcasecmp(bus_id, expected) == 0) {
      *device = Handle(i);
      return kSuccess;
    }
  }
  return kErrorNotFound;
}

Result nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int* level) {
  const Result use = CheckUse(a, level);
  if (use != kSuccess || CheckUse(b, level) != kSuccess || a == b) {
    return use != kSuccess ? use : kErrorInvalidArgument;
  }
  *level = FromEnvironment("FERRY_FAKE_NVML_LEVEL", kHostBridge);
  if (*level == -1) return kErrorNotSupported;
  return *level == -2 ? 999 : kSuccess;
}

Result nvmlDeviceGetNvLinkState(Device device, unsigned int link, int* is_active) {
  const Result use = CheckUse(device, is_active);
  if (use != kSuccess) return use;
  if (!Mode("direct") && !Mode("switch")) return kErrorNotSupported;
  if (link > 3) return kErrorInvalidArgument;
  *is_active = Mode("direct") && link == 3 ? 0 : 1;
  return kSuccess;
}

Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned int link, PciInfo* info) {
  const Result use = CheckUse(device, info);
  if (use != kSuccess) return use;
  if (link > 3) return kErrorInvalidArgument;
  // NVML writes capitals and a domain of eight digits.
  if (Mode("switch")) {
    std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:C7:00.0");
  } else {
    const int peer = link == 2 ? 2 : 1 - IndexOf(device);
    std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02X:00.0", 0x1a + peer);
  }
  return kSuccess;
}

#ifndef FAKE_NVML_OLD
Result nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned int link, int* type) {
  const Result use = CheckUse(device, type);
  if (use != kSuccess) return use;
  *type = Mode("switch") ? kRemoteSwitch : kRemoteGpu;
  return kSuccess;
}

Result nvmlDeviceGetGpuFabricInfoV(Device device, FabricInfoV2* info) {
  const Result use = CheckUse(device, info);
  if (use != kSuccess) return use;
  if (info->version != kFabricInfoV2Version) return kErrorInvalidArgument;
  FillFabric(info->cluster_uuid, &info->status, &info->clique_id, &info->state);
  return kSuccess;
}
#endif

Result nvmlDeviceGetGpuFabricInfo(Device device, FabricInfo* info) {
  const Result use = CheckUse(device, info);
  if (use != kSuccess) return use;
  FillFabric(info->cluster_uuid, &info->status, &info->clique_id, &info->state);
  return kSuccess;
}

}  // extern "C"
