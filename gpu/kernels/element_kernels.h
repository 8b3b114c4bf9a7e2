// SPDX-License-Identifier: Apache-2.0
// ElementKernels: arithmetic on arrays in GPU memory.
#ifndef FERRY_GPU_KERNELS_ELEMENT_KERNELS_H_
#define FERRY_GPU_KERNELS_ELEMENT_KERNELS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "gpu/kernels/cast_elements.h"
#include "gpu/kernels/elements.h"
#include "gpu/kernels/embedded.h"
#include "gpu/kernels/kernel_module.h"

namespace ferry::cuda {

// Loaded for one device; elements.h describes each call. Pointers are the device's, aligned to an
// element. Launches return once enqueued; thread-safe.
class ElementKernels final {
 public:
  // As KernelModule::Load.
  static absl::StatusOr<std::unique_ptr<ElementKernels>> Load(
      std::shared_ptr<CudaDevice> device, const CompiledKernels& compiled = EmbeddedKernels());

  absl::Status Binary(Stream stream, const BinaryCall& call) const;
  absl::Status Unary(Stream stream, const UnaryCall& call) const;
  absl::Status Cast(Stream stream, const CastCall& call) const;
  absl::Status Fill(Stream stream, const FillCall& call) const;

 private:
  ElementKernels() = default;

  // Constant after Load.
  std::unique_ptr<KernelModule> module_;
  Function binary_ = nullptr;
  Function unary_ = nullptr;
  Function cast_ = nullptr;
  Function fill_ = nullptr;
};

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_ELEMENT_KERNELS_H_
