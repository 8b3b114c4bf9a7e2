// SPDX-License-Identifier: Apache-2.0
// Empty kernels: nvcc was not available at build time.
#include "gpu/kernels/embedded.h"

namespace ferry::cuda {

CompiledKernels EmbeddedKernels() { return {}; }

}  // namespace ferry::cuda
