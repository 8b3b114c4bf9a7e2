// SPDX-License-Identifier: Apache-2.0
// Arithmetic and Cast on GPUs.
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/op_schema.h"
#include "tensorflow/worker/kernels/add.h"
#include "tensorflow/worker/kernels/broadcast.h"
#include "tensorflow/worker/kernels/cast.h"
#include "tensorflow/worker/kernels/gpu_families.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

using cuda::BinaryCall;
using cuda::BinaryOp;
using cuda::CastCall;
using cuda::ElementKernels;
using cuda::ElementType;
using cuda::UnaryCall;
using cuda::UnaryOp;

// Both enums use TensorFlow's values.
ElementType ElementTypeOf(DataType dtype) { return static_cast<ElementType>(dtype); }

BinaryOp BinaryOpOf(absl::string_view op) {
  if (op == "Add" || op == "AddV2") return BinaryOp::kAdd;
  if (op == "Sub") return BinaryOp::kSub;
  if (op == "Mul") return BinaryOp::kMul;
  if (op == "RealDiv") return BinaryOp::kDiv;
  if (op == "Maximum") return BinaryOp::kMax;
  FERRY_CHECK(op == "Minimum");
  return BinaryOp::kMin;
}

// Arrays with equal element counts.
BinaryCall CallOf(BinaryOp op, const Tensor& x, const Tensor& y, const Tensor& out) {
  BinaryCall call = {};
  call.x = x.data();
  call.y = y.data();
  call.out = const_cast<void*>(out.data());
  call.count = static_cast<uint64_t>(out.shape().element_count());
  call.op = op;
  call.type = ElementTypeOf(out.dtype());
  call.rank = 1;
  call.extents[0] = call.count;
  call.x_strides[0] = 1;
  call.y_strides[0] = 1;
  return call;
}

absl::Status ComputeBinary(BinaryOp op, KernelContext& context, GpuCompute& gpu) {
  const Tensor& x = context.input(0);
  const Tensor& y = context.input(1);
  FERRY_ASSIGN_OR_RETURN(const Broadcast broadcast, BroadcastOf(x.shape(), y.shape()));
  if (broadcast.extents.size() > cuda::kMaxBroadcastRank) {
    return absl::UnimplementedError(absl::StrCat("Broadcast between ", ShapeText(x.shape()),
                                                 " and ", ShapeText(y.shape()),
                                                 " is not supported yet."));
  }
  FERRY_ASSIGN_OR_RETURN(const Tensor out, AllocateOnGpu(context, gpu, x.dtype(), broadcast.shape));
  BinaryCall call = CallOf(op, x, y, out);
  call.rank = static_cast<uint32_t>(broadcast.extents.size());
  for (size_t i = 0; i < broadcast.extents.size(); ++i) {
    call.extents[i] = static_cast<uint64_t>(broadcast.extents[i]);
    call.x_strides[i] = static_cast<uint64_t>(broadcast.x_strides[i]);
    call.y_strides[i] = static_cast<uint64_t>(broadcast.y_strides[i]);
  }
  FERRY_ASSIGN_OR_RETURN(
      Tensor result,
      gpu.Run(context.inputs(), out, [&call](const ElementKernels& kernels, cuda::Stream stream) {
        return kernels.Binary(stream, call);
      }));
  context.set_output(0, std::move(result));
  return absl::OkStatus();
}

// Adds in the order of the CPU kernel.
absl::Status AddAll(const std::string& name, KernelContext& context, GpuCompute& gpu) {
  FERRY_RETURN_IF_ERROR(CheckAddends(context, name));
  const Tensor& first = context.input(0);
  const int count = context.input_count();
  if (count == 1) {
    context.set_output(0, first);
    return absl::OkStatus();
  }
  FERRY_ASSIGN_OR_RETURN(const Tensor sum,
                         AllocateOnGpu(context, gpu, first.dtype(), first.shape()));
  Tensor group_sum;
  if (count > FirstAddends(count)) {
    FERRY_ASSIGN_OR_RETURN(group_sum, AllocateOnGpu(context, gpu, first.dtype(), first.shape()));
  }
  const auto launch = [&](const ElementKernels& kernels, cuda::Stream stream) -> absl::Status {
    const auto add = [&](const Tensor& x, const Tensor& y, const Tensor& out) {
      return kernels.Binary(stream, CallOf(BinaryOp::kAdd, x, y, out));
    };
    const auto add_group = [&](int begin, int end, const Tensor& out) -> absl::Status {
      FERRY_RETURN_IF_ERROR(add(context.input(begin), context.input(begin + 1), out));
      for (int i = begin + 2; i < end; ++i) {
        FERRY_RETURN_IF_ERROR(add(out, context.input(i), out));
      }
      return absl::OkStatus();
    };
    int added = FirstAddends(count);
    FERRY_RETURN_IF_ERROR(add_group(0, added, sum));
    for (; added < count; added += kAddendGroup) {
      FERRY_RETURN_IF_ERROR(add_group(added, added + kAddendGroup, group_sum));
      FERRY_RETURN_IF_ERROR(add(sum, group_sum, sum));
    }
    return absl::OkStatus();
  };
  // The group's sum is used for as long as the inputs are.
  std::vector<Tensor> used(context.inputs().begin(), context.inputs().end());
  if (group_sum.is_valid()) used.push_back(group_sum);
  FERRY_ASSIGN_OR_RETURN(Tensor result, gpu.Run(used, sum, launch));
  context.set_output(0, std::move(result));
  return absl::OkStatus();
}

bool IsCastable(DataType dtype) { return cuda::BytesOf(ElementTypeOf(dtype)) != 0; }

}  // namespace

absl::StatusOr<Tensor> AddOnGpu(GpuCompute& gpu, const Tensor& x, const Tensor& y) {
  FERRY_ASSIGN_OR_RETURN(const Tensor out, gpu.Allocate(x.dtype(), x.shape()));
  const BinaryCall call = CallOf(BinaryOp::kAdd, x, y, out);
  const Tensor inputs[] = {x, y};
  return gpu.Run(inputs, out, [&call](const ElementKernels& kernels, cuda::Stream stream) {
    return kernels.Binary(stream, call);
  });
}

KernelOr MakeGpuBinary(const NodeAttrs& node, const KernelGpu& gpu) {
  return MakeGpuKernel(node, gpu,
                       [op = BinaryOpOf(node.op())](KernelContext& context, GpuCompute& compute) {
                         return ComputeBinary(op, context, compute);
                       });
}

KernelOr MakeGpuUnary(const NodeAttrs& node, const KernelGpu& gpu) {
  const UnaryOp op = node.op() == "Neg" ? UnaryOp::kNeg : UnaryOp::kSqrt;
  return MakeGpuKernel(
      node, gpu, [op](KernelContext& context, GpuCompute& compute) -> absl::Status {
        const Tensor& x = context.input(0);
        FERRY_ASSIGN_OR_RETURN(const Tensor out,
                               AllocateOnGpu(context, compute, x.dtype(), x.shape()));
        UnaryCall call = {};
        call.x = x.data();
        call.out = const_cast<void*>(out.data());
        call.count = static_cast<uint64_t>(out.shape().element_count());
        call.op = op;
        call.type = ElementTypeOf(x.dtype());
        FERRY_ASSIGN_OR_RETURN(
            Tensor result, compute.Run(context.inputs(), out,
                                       [&call](const ElementKernels& kernels, cuda::Stream stream) {
                                         return kernels.Unary(stream, call);
                                       }));
        context.set_output(0, std::move(result));
        return absl::OkStatus();
      });
}

KernelOr MakeGpuAddN(const NodeAttrs& node, const KernelGpu& gpu) {
  return MakeGpuKernel(node, gpu,
                       [name = node.name()](KernelContext& context, GpuCompute& compute) {
                         return AddAll(name, context, compute);
                       });
}

KernelOr MakeGpuCast(const NodeAttrs& node, const KernelGpu& gpu) {
  const graph::DataType from = node.Get("SrcT").type();
  const graph::DataType to = node.Get("DstT").type();
  if (from == to) return MakeForward(node);
  const DataType src = PlainType(node.Type("SrcT"));
  const DataType dtype = node.Type("DstT");
  if (!IsCastable(src) || !IsCastable(PlainType(dtype))) {
    return absl::UnimplementedError(absl::StrCat("Cast ", graph::TypeName(from), " to ",
                                                 graph::TypeName(to), " is not supported on GPUs"));
  }
  CastCall call = {};
  call.from = ElementTypeOf(src);
  call.to = ElementTypeOf(PlainType(dtype));
  call.truncates = node.Bool("Truncate") ? 1 : 0;
  return MakeGpuKernel(
      node, gpu, [dtype, call](KernelContext& context, GpuCompute& compute) -> absl::Status {
        const Tensor& x = context.input(0);
        FERRY_ASSIGN_OR_RETURN(const Tensor out, AllocateOnGpu(context, compute, dtype, x.shape()));
        CastCall own = call;
        own.x = x.data();
        own.out = const_cast<void*>(out.data());
        own.count = static_cast<uint64_t>(out.shape().element_count());
        FERRY_ASSIGN_OR_RETURN(
            Tensor result, compute.Run(context.inputs(), out,
                                       [&own](const ElementKernels& kernels, cuda::Stream stream) {
                                         return kernels.Cast(stream, own);
                                       }));
        context.set_output(0, std::move(result));
        return absl::OkStatus();
      });
}

}  // namespace ferry::worker
