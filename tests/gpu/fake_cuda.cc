// SPDX-License-Identifier: Apache-2.0
// A strict fake of libcuda.so.1 with two GPUs: wrong use fails as it does there, and a context ends
// the process. Built with FAKE_CUDA_WITHOUT_UUID it lacks a function; FERRY_FAKE_CUDA_* change its
// results.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu/cuda/driver_types.h"

namespace {

using ferry::cuda::Device;
using ferry::cuda::Result;
using ferry::cuda::Uuid;

constexpr int kGpuCount = 2;
bool initialized = false;

int FromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

int GpuCount() { return FromEnvironment("FERRY_FAKE_CUDA_COUNT", kGpuCount); }

// The first check of every function but cuInit.
Result CheckUse(const void* out) {
  if (!initialized) return ferry::cuda::kErrorNotInitialized;
  return out == nullptr ? ferry::cuda::kErrorInvalidValue : ferry::cuda::kSuccess;
}

// Handles are not ordinals, so that mixing the two up fails.
Result CheckDevice(const void* out, Device device) {
  const Result use = CheckUse(out);
  if (use != ferry::cuda::kSuccess) return use;
  return device >= 70 && device < 70 + GpuCount() ? ferry::cuda::kSuccess
                                                  : ferry::cuda::kErrorInvalidDevice;
}

}  // namespace

extern "C" {

Result cuInit(unsigned int flags) {
  if (flags != 0) return ferry::cuda::kErrorInvalidValue;
  const int result = FromEnvironment("FERRY_FAKE_CUDA_INIT_RESULT", 0);
  initialized = result == 0;
  return result;
}

Result cuDriverGetVersion(int* version) {
  *version = FromEnvironment("FERRY_FAKE_CUDA_VERSION", 12040);
  return 0;
}

Result cuGetErrorName(Result error, const char** text) {
  *text = error == ferry::cuda::kErrorNoDevice ? "CUDA_ERROR_NO_DEVICE" : nullptr;
  return *text == nullptr ? ferry::cuda::kErrorInvalidValue : 0;
}

Result cuGetErrorString(Result error, const char** text) {
  *text = error == ferry::cuda::kErrorNoDevice ? "no CUDA-capable device is detected" : nullptr;
  return *text == nullptr ? ferry::cuda::kErrorInvalidValue : 0;
}

Result cuDeviceGetCount(int* count) {
  const Result use = CheckUse(count);
  if (use == 0) *count = GpuCount();
  return use;
}

Result cuDeviceGet(Device* device, int ordinal) {
  const Result use = CheckUse(device);
  if (use != 0) return use;
  if (ordinal < 0 || ordinal >= GpuCount()) return ferry::cuda::kErrorInvalidDevice;
  *device = 70 + ordinal;
  return 0;
}

Result cuDeviceGetName(char* name, int bytes, Device device) {
  const Result use = CheckDevice(name, device);
  if (use == 0) std::snprintf(name, static_cast<size_t>(bytes), "Fake GPU");
  return use;
}

#ifndef FAKE_CUDA_WITHOUT_UUID
Result cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  const Result use = CheckDevice(uuid, device);
  if (use != 0) return use;
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<unsigned char>(16 * i + i);
  uuid->bytes[15] = static_cast<unsigned char>(
      FromEnvironment("FERRY_FAKE_CUDA_SAME_UUID", 0) != 0 ? 0 : device - 70);
  return 0;
}
#endif

// In capitals, as the driver writes it.
Result cuDeviceGetPCIBusId(char* bus_id, int bytes, Device device) {
  const Result use = CheckDevice(bus_id, device);
  if (use == 0)
    std::snprintf(bus_id, static_cast<size_t>(bytes), "0000:%02X:00.0", 0x1a + device - 70);
  return use;
}

Result cuDeviceGetAttribute(int* value, int attribute, Device device) {
  const Result use = CheckDevice(value, device);
  if (use != 0) return use;
  // For all devices, or for one.
  if (attribute == FromEnvironment("FERRY_FAKE_CUDA_BAD_ATTRIBUTE", -1) &&
      device - 70 == FromEnvironment("FERRY_FAKE_CUDA_BAD_DEVICE", device - 70)) {
    return 999;
  }
  switch (attribute) {
    case ferry::cuda::kMultiprocessorCount:
      *value = 132;
      return 0;
    case ferry::cuda::kComputeCapabilityMajor:
      *value = 9;
      return 0;
    case ferry::cuda::kComputeCapabilityMinor:
      *value = 0;
      return 0;
    default:
      return ferry::cuda::kErrorInvalidValue;
  }
}

Result cuDeviceTotalMem_v2(size_t* bytes, Device device) {
  const Result use = CheckDevice(bytes, device);
  if (use == 0) *bytes = 1000;
  return use;
}

Result cuCtxCreate_v2(void**, unsigned int, Device) { std::abort(); }
Result cuDevicePrimaryCtxRetain(void**, Device) { std::abort(); }

}  // extern "C"
