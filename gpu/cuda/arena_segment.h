// SPDX-License-Identifier: Apache-2.0
// ArenaSegment: one piece of a GpuArena's memory, allocated from the driver.
#ifndef FERRY_GPU_CUDA_ARENA_SEGMENT_H_
#define FERRY_GPU_CUDA_ARENA_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/ipc_descriptor.h"

namespace ferry::cuda {

// Checks whether memory that is exported as file descriptors can be created here; not every
// container allows it. RESOURCE_EXHAUSTED: the device has no free memory at present.
//   granularity: set to the unit of its sizes.
absl::Status ProbeExport(const CudaDevice& device, size_t& granularity);

// Released by Free, which may synchronize the device.
struct ArenaSegment {
  uint32_t id = 0;
  size_t bytes = 0;
  DevicePointer base = 0;
  AllocationHandle handle = 0;
  bool is_mapped = false;
  IpcDescriptor descriptor;  // of the whole segment

  // Maps the segment with access for `device` and for its peers of these ordinals. A peer for which
  // the driver refuses it does not fail the call.
  //   refused: gets each of those, with the error.
  absl::Status MapVirtual(const CudaDevice& device, const std::vector<int>& peers,
                          std::vector<std::pair<int, absl::Status>>& refused);
  absl::Status AllocatePlain(const CudaDevice& device);
  absl::Status Describe(const CudaDevice& device, ExportBy export_by);
  void Free(const CudaDevice& device);
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_ARENA_SEGMENT_H_
