// SPDX-License-Identifier: Apache-2.0
// FunctionKernel: a kernel made from a callable.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_FUNCTION_KERNEL_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_FUNCTION_KERNEL_H_

#include <memory>
#include <utility>

#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

template <typename Function>
class FunctionKernel final : public Kernel {
 public:
  explicit FunctionKernel(Function function) : function_(std::move(function)) {}

  absl::Status Compute(KernelContext& context) const override { return function_(context); }

 private:
  const Function function_;
};

// function: absl::Status(KernelContext&), callable when const.
template <typename Function>
std::unique_ptr<Kernel> MakeFunctionKernel(Function function) {
  return std::make_unique<FunctionKernel<Function>>(std::move(function));
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_FUNCTION_KERNEL_H_
