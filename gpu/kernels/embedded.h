// SPDX-License-Identifier: Apache-2.0
// The compiled kernels that are embedded in this build.
#ifndef FERRY_GPU_KERNELS_EMBEDDED_H_
#define FERRY_GPU_KERNELS_EMBEDDED_H_

#include "absl/strings/string_view.h"

namespace ferry::cuda {

// Compiled kernels; empty: there are none. A value; the data it refers to must stay valid.
struct CompiledKernels {
  CompiledKernels() = default;
  CompiledKernels(absl::string_view first) : image(first) {}  // NOLINT: as it is
  CompiledKernels(const char* first) : image(first) {}        // NOLINT: as it is
  CompiledKernels(absl::string_view first, absl::string_view second)
      : image(first), older_ptx(second) {}

  bool empty() const { return image.empty(); }

  // In a format of cuModuleLoadData.
  absl::string_view image;
  // NUL-terminated PTX, for drivers that are older than the compiler of `image`; may be empty.
  absl::string_view older_ptx;
};

// A fat binary, and PTX for every supported driver; of a build without nvcc, the PTX alone.
CompiledKernels EmbeddedKernels();

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_EMBEDDED_H_
