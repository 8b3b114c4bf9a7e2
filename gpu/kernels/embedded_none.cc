// SPDX-License-Identifier: Apache-2.0
// No kernels: there was no nvcc when this was built.
#include "gpu/kernels/embedded.h"

namespace ferry::cuda {

CompiledKernels EmbeddedKernels() { return {}; }

}  // namespace ferry::cuda
