// SPDX-License-Identifier: Apache-2.0
// The GPUs that the CUDA driver shows, as topology devices.
#ifndef FERRY_GPU_CUDA_ENUMERATE_H_
#define FERRY_GPU_CUDA_ENUMERATE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu/cuda/cuda_api.h"
#include "topology/device.h"

namespace ferry::cuda {

// In the driver's order. Creates no context. NUMA nodes and fabrics are not the driver's to tell.
// Errors: NOT_FOUND if there is no GPU; INTERNAL if a call fails.
absl::StatusOr<std::vector<ferry::Device>> EnumerateGpus(const CudaApi& api);

// `why` there is no GPU to use, and what this process's environment has to do with it: a list of
// visible devices that is set, and empty above all. OK and other errors are as they were.
absl::Status WithVisibility(const absl::Status& why);

}  // namespace ferry::cuda

#endif  // FERRY_GPU_CUDA_ENUMERATE_H_
