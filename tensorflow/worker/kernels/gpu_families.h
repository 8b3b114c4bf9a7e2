// SPDX-License-Identifier: Apache-2.0
// Factories of GPU kernels, and helpers they share.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_GPU_FAMILIES_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_GPU_FAMILIES_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "gpu/gpu_compute.h"
#include "tensorflow/worker/kernel.h"
#include "tensorflow/worker/kernels/families.h"

namespace ferry::worker {

using GpuMaker = KernelOr (*)(const NodeAttrs& node, const KernelGpu& gpu);

// Returns null for an op that has none.
GpuMaker FindGpuMaker(absl::string_view op);

// gpu_value_kernels.cc
KernelOr MakeGpuConst(const NodeAttrs& node, const KernelGpu& gpu);
KernelOr MakeGpuFill(const NodeAttrs& node, const KernelGpu& gpu);
KernelOr MakeGpuZerosLike(const NodeAttrs& node, const KernelGpu& gpu);
KernelOr MakeGpuOnesLike(const NodeAttrs& node, const KernelGpu& gpu);

// gpu_arithmetic_kernels.cc
KernelOr MakeGpuBinary(const NodeAttrs& node, const KernelGpu& gpu);
KernelOr MakeGpuUnary(const NodeAttrs& node, const KernelGpu& gpu);  // Neg, Sqrt
KernelOr MakeGpuAddN(const NodeAttrs& node, const KernelGpu& gpu);
KernelOr MakeGpuCast(const NodeAttrs& node, const KernelGpu& gpu);
// Adds two tensors of the same type and shape.
absl::StatusOr<Tensor> AddOnGpu(GpuCompute& gpu, const Tensor& x, const Tensor& y);

// variable_kernels.cc
KernelOr MakeGpuAssignAddVariable(const NodeAttrs& node, const KernelGpu& gpu);

// A kernel made from a callable and a GPU.
template <typename Function>
class GpuKernel final : public Kernel {
 public:
  GpuKernel(GpuCompute& gpu, Function function) : gpu_(gpu), function_(std::move(function)) {}

  absl::Status Compute(KernelContext& context) const override { return function_(context, gpu_); }
  bool may_block() const override { return true; }

 private:
  GpuCompute& gpu_;
  const Function function_;
};

// Makes a GpuKernel that launches Ferry's own device code: fails here if the build lacks it, rather
// than in every step.
//   function: absl::Status(KernelContext&, GpuCompute&), callable when const.
template <typename Function>
KernelOr MakeGpuKernel(const NodeAttrs& node, const KernelGpu& gpu, Function function) {
  if (absl::Status loaded = gpu.compute->LoadKernels(); !loaded.ok()) {
    return absl::Status(loaded.code(),
                        absl::StrCat("Op ", node.op(), " of node ", node.name(),
                                     " cannot be run on GPUs here: ", loaded.message()));
  }
  return std::make_unique<GpuKernel<Function>>(*gpu.compute, std::move(function));
}

// Like KernelContext::Allocate, on the GPU.
absl::StatusOr<Tensor> AllocateOnGpu(const KernelContext& context, GpuCompute& gpu, DataType dtype,
                                     const Shape& shape);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_GPU_FAMILIES_H_
