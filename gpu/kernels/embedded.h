// SPDX-License-Identifier: Apache-2.0
// The compiled kernels, as far as this build has them.
#ifndef FERRY_GPU_KERNELS_EMBEDDED_H_
#define FERRY_GPU_KERNELS_EMBEDDED_H_

#include "absl/strings/string_view.h"

namespace ferry::cuda {

// A fat binary for cuModuleLoadData; empty if this build was made without nvcc.
absl::string_view EmbeddedKernels();

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_EMBEDDED_H_
