// SPDX-License-Identifier: Apache-2.0
// ArenaSegment: one piece of a GpuArena's memory, from the driver and back.
#ifndef FERRY_GPU_CUDA_ARENA_SEGMENT_H_
#define FERRY_GPU_CUDA_ARENA_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/ipc_descriptor.h"

namespace ferry::cuda {

// Whether memory that is exported as descriptors can be made here; not every container lets it.
// RESOURCE_EXHAUSTED: the device has none just now.
//   granularity: what its sizes are multiples of.
absl::Status ProbeExport(const CudaDevice& device, size_t& granularity);

// Given back by Free, which may synchronise the device.
struct ArenaSegment {
  uint32_t id = 0;
  size_t bytes = 0;
  DevicePointer base = 0;
  AllocationHandle handle = 0;
  bool is_mapped = false;
  IpcDescriptor descriptor;  // of the whole segment

  // For the devices of these ordinals.
  absl::Status MapVirtual(const CudaDevice& device, const std::vector<int>& ordinals);
  absl::Status AllocatePlain(const CudaDevice& device);
  absl::Status Describe(const CudaDevice& device, ExportBy export_by);
  void Free(const CudaDevice& device);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_ARENA_SEGMENT_H_
