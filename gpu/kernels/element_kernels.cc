// SPDX-License-Identifier: Apache-2.0
// ElementKernels: each call struct is the single parameter of its kernel.
#include "gpu/kernels/element_kernels.h"

#include <utility>

#include "absl/memory/memory.h"

#include "base/status_macros.h"

namespace ferry::cuda {
namespace {

template <typename Call>
absl::Status LaunchCall(const KernelModule& module, Function function, Stream stream, Call call) {
  void* parameters[] = {&call};
  return module.Launch(function, stream, call.count, parameters);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ElementKernels>> ElementKernels::Load(
    std::shared_ptr<CudaDevice> device, const CompiledKernels& compiled) {
  auto kernels = absl::WrapUnique(new ElementKernels());
  const std::pair<const char*, Function*> functions[] = {
      {"ferry_binary", &kernels->binary_},
      {"ferry_unary", &kernels->unary_},
      {"ferry_cast", &kernels->cast_},
      {"ferry_fill", &kernels->fill_},
  };
  FERRY_ASSIGN_OR_RETURN(kernels->module_,
                         KernelModule::Load(std::move(device), compiled, functions));
  return kernels;
}

absl::Status ElementKernels::Binary(Stream stream, const BinaryCall& call) const {
  return LaunchCall(*module_, binary_, stream, call);
}

absl::Status ElementKernels::Unary(Stream stream, const UnaryCall& call) const {
  return LaunchCall(*module_, unary_, stream, call);
}

absl::Status ElementKernels::Cast(Stream stream, const CastCall& call) const {
  return LaunchCall(*module_, cast_, stream, call);
}

absl::Status ElementKernels::Fill(Stream stream, const FillCall& call) const {
  return LaunchCall(*module_, fill_, stream, call);
}

}  // namespace ferry::cuda
