// SPDX-License-Identifier: Apache-2.0
// The table of GPU kernels, and value kernels: Const, Fill, ZerosLike, OnesLike.
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "gpu/gpus.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/fill.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/gpu_families.h"

namespace ferry::worker {
namespace {

// Timeout for copying a constant to the GPU.
constexpr absl::Duration kCopyTimeout = absl::Minutes(1);

absl::StatusOr<Tensor> Filled(GpuCompute& gpu, absl::Span<const Tensor> value, const Tensor& out,
                              const uint64_t (&element)[2]) {
  cuda::FillCall call = {};
  call.value = value.empty() ? nullptr : value[0].data();
  call.out = const_cast<void*>(out.data());
  call.count = static_cast<uint64_t>(out.shape().element_count());
  call.element_bytes = ElementBytes(out.dtype());
  std::memcpy(call.element, element, sizeof(call.element));
  return gpu.Run(value, out, [&call](const cuda::ElementKernels& kernels, cuda::Stream stream) {
    return kernels.Fill(stream, call);
  });
}

// Fills a tensor of the input's type and shape with one element.
absl::Status FillLike(KernelContext& context, GpuCompute& gpu, const uint64_t (&element)[2]) {
  const Tensor& input = context.input(0);
  FERRY_ASSIGN_OR_RETURN(const Tensor out,
                         AllocateOnGpu(context, gpu, input.dtype(), input.shape()));
  FERRY_ASSIGN_OR_RETURN(Tensor filled, Filled(gpu, {}, out, element));
  context.set_output(0, std::move(filled));
  return absl::OkStatus();
}

}  // namespace

GpuMaker FindGpuMaker(absl::string_view op) {
  static const auto* const kMakers = new absl::flat_hash_map<absl::string_view, GpuMaker>{
      {"Const", MakeGpuConst},         {"Fill", MakeGpuFill},
      {"ZerosLike", MakeGpuZerosLike}, {"OnesLike", MakeGpuOnesLike},
      {"Add", MakeGpuBinary},          {"AddV2", MakeGpuBinary},
      {"Sub", MakeGpuBinary},          {"Mul", MakeGpuBinary},
      {"RealDiv", MakeGpuBinary},      {"Maximum", MakeGpuBinary},
      {"Minimum", MakeGpuBinary},      {"AddN", MakeGpuAddN},
      {"Neg", MakeGpuUnary},           {"Sqrt", MakeGpuUnary},
      {"Cast", MakeGpuCast},           {"AssignAddVariableOp", MakeGpuAssignAddVariable},
  };
  const auto found = kMakers->find(op);
  return found == kMakers->end() ? nullptr : found->second;
}

absl::StatusOr<Tensor> AllocateOnGpu(const KernelContext& context, GpuCompute& gpu, DataType dtype,
                                     const Shape& shape) {
  absl::Status status = context.CheckBytes(TensorBytes(dtype, shape).value_or(~size_t{0}));
  if (status.ok()) {
    absl::StatusOr<Tensor> tensor = gpu.Allocate(dtype, shape);
    if (tensor.ok()) return tensor;
    status = tensor.status();
  }
  return AsOutOfMemory(status, dtype, shape);
}

// The constant is copied once and shared by all steps.
KernelOr MakeGpuConst(const NodeAttrs& node, const KernelGpu& gpu) {
  MoveRequest move;
  FERRY_ASSIGN_OR_RETURN(move.tensor, ConstantOf(node));
  move.to = {MemorySpace::kCuda, gpu.compute->ordinal()};
  move.deadline = SteadyClock().Now() + kCopyTimeout;
  move.what = absl::StrCat("constant ", node.name());
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, gpu.gpus->MoveAndWait(std::move(move)));
  return MakeFunctionKernel([tensor = std::move(tensor)](KernelContext& context) {
    context.set_output(0, tensor);
    return absl::OkStatus();
  });
}

KernelOr MakeGpuFill(const NodeAttrs& node, const KernelGpu& gpu) {
  return MakeGpuKernel(node, gpu, [](KernelContext& context, GpuCompute& compute) -> absl::Status {
    const Tensor& value = context.input(1);
    FERRY_ASSIGN_OR_RETURN(const Shape shape, FillShape(context.input(0), value));
    FERRY_ASSIGN_OR_RETURN(const Tensor out, AllocateOnGpu(context, compute, value.dtype(), shape));
    FERRY_ASSIGN_OR_RETURN(Tensor filled,
                           Filled(compute, context.inputs().subspan(1, 1), out, {0, 0}));
    context.set_output(0, std::move(filled));
    return absl::OkStatus();
  });
}

KernelOr MakeGpuZerosLike(const NodeAttrs& node, const KernelGpu& gpu) {
  return MakeGpuKernel(node, gpu, [](KernelContext& context, GpuCompute& compute) {
    return FillLike(context, compute, {0, 0});
  });
}

KernelOr MakeGpuOnesLike(const NodeAttrs& node, const KernelGpu& gpu) {
  struct Element {
    uint64_t words[2] = {0, 0};
  };
  Element element;
  const bool is_known =
      WithType(NumberTypes() + TypeSet<bool>(), node.Type("T"), [&element](auto tag) {
        const auto one = static_cast<typename decltype(tag)::Type>(1);
        std::memcpy(element.words, &one, sizeof(one));
      });
  FERRY_CHECK(is_known);
  return MakeGpuKernel(node, gpu, [element](KernelContext& context, GpuCompute& compute) {
    return FillLike(context, compute, element.words);
  });
}

}  // namespace ferry::worker
