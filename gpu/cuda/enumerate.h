// SPDX-License-Identifier: Apache-2.0
// The GPUs visible to the CUDA driver, as topology devices.
#ifndef FERRY_GPU_CUDA_ENUMERATE_H_
#define FERRY_GPU_CUDA_ENUMERATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu/cuda/cuda_api.h"
#include "topology/device.h"

namespace ferry::cuda {

struct GpuEnumeration {
  // In the driver's order, without those that answered with an error: ordinals may have gaps. NUMA
  // nodes and fabrics are not set, since the driver does not report them.
  std::vector<ferry::Device> gpus;
  // For each of the others: its name, the call, the driver's error.
  std::vector<std::string> failures;
};

// Creates no context. Errors: NOT_FOUND if there is no GPU; INTERNAL if each of them answers with
// an error, with the first one's.
absl::StatusOr<GpuEnumeration> EnumerateGpus(const CudaApi& api);

// Adds to `why` (no GPU is available) the effect of this process's environment: a list of visible
// devices that is set, in particular an empty one. OK and other errors are returned unchanged.
absl::Status WithVisibility(const absl::Status& why);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_ENUMERATE_H_
