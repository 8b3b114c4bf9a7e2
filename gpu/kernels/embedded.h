// SPDX-License-Identifier: Apache-2.0
// The compiled kernels, as far as this build has them.
#ifndef FERRY_GPU_KERNELS_EMBEDDED_H_
#define FERRY_GPU_KERNELS_EMBEDDED_H_

#include "absl/strings/string_view.h"

namespace ferry::cuda {

// What kernels are loaded from; empty: there are none. A value; what it refers to stays valid.
struct CompiledKernels {
  CompiledKernels() = default;
  CompiledKernels(absl::string_view first) : image(first) {}  // NOLINT: as it is
  CompiledKernels(const char* first) : image(first) {}        // NOLINT: as it is
  CompiledKernels(absl::string_view first, absl::string_view second)
      : image(first), older_ptx(second) {}

  bool empty() const { return image.empty(); }

  // As cuModuleLoadData takes it.
  absl::string_view image;
  // PTX that ends with a zero, for drivers that are older than the compiler of `image`; may be
  // empty.
  absl::string_view older_ptx;
};

// A fat binary, and PTX that any driver takes which Ferry takes; empty if this build was made
// without nvcc.
CompiledKernels EmbeddedKernels();

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_EMBEDDED_H_
