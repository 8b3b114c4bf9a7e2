// SPDX-License-Identifier: Apache-2.0
// The GPUs visible to the CUDA driver, as topology devices.
#ifndef FERRY_GPU_CUDA_ENUMERATE_H_
#define FERRY_GPU_CUDA_ENUMERATE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu/cuda/cuda_api.h"
#include "topology/device.h"

namespace ferry::cuda {

// In the driver's order. Creates no context. NUMA nodes and fabrics are not set, since the driver
// does not report them. Errors: NOT_FOUND if there is no GPU; INTERNAL if a call fails.
absl::StatusOr<std::vector<ferry::Device>> EnumerateGpus(const CudaApi& api);

// Adds to `why` (no GPU is available) the effect of this process's environment: a list of visible
// devices that is set, in particular an empty one. OK and other errors are returned unchanged.
absl::Status WithVisibility(const absl::Status& why);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_ENUMERATE_H_
