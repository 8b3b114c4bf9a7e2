// SPDX-License-Identifier: Apache-2.0
// The few types and numbers of the CUDA driver's binary interface that Ferry uses, declared here so
// that no CUDA header is needed to build. Source: CUDA Driver API reference; the numbers are part
// of its stable binary interface.
#ifndef FERRY_GPU_CUDA_DRIVER_TYPES_H_
#define FERRY_GPU_CUDA_DRIVER_TYPES_H_

#include <cstddef>

namespace ferry::cuda {

using Result = int;  // CUresult
using Device = int;  // CUdevice

struct Uuid {  // CUuuid
  unsigned char bytes[16];
};
static_assert(sizeof(Uuid) == 16);

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorNotInitialized = 3;
inline constexpr Result kErrorNoDevice = 100;
inline constexpr Result kErrorInvalidDevice = 101;

// CUdevice_attribute.
enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_DRIVER_TYPES_H_
