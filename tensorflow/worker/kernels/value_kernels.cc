// SPDX-License-Identifier: Apache-2.0
// Placeholders, constants, and kernels that only forward tensors.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensor/tensor_proto.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/fill.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {

KernelOr MakePlaceholder(const NodeAttrs& node) {
  const tensorflow::TensorShapeProto& shape = node.Get("shape").shape();
  FERRY_RETURN_IF_ERROR(CheckPartialShape(shape));
  std::string text = absl::StrCat("You must feed a value for placeholder tensor '", node.name(),
                                  "' with dtype ", DataTypeName(node.Type("dtype")));
  // Legacy graphs write an unknown shape as one without dimensions.
  if (!shape.unknown_rank() && shape.dim_size() > 0) {
    absl::StrAppend(&text, " and shape ", PartialShapeText(shape));
  }
  return MakeFunctionKernel(
      [status = absl::InvalidArgumentError(text)](KernelContext&) { return status; });
}

absl::StatusOr<Tensor> ConstantOf(const NodeAttrs& node) {
  const tensorflow::TensorProto& value = node.Get("value").tensor();
  absl::StatusOr<Tensor> made =
      TensorFromProto(value, std::min(kMaxDecodedBytes, KernelEnvironment().max_tensor_bytes));
  if (absl::IsInvalidArgument(made.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("Cannot parse tensor from proto: ", made.status().message()));
  }
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, std::move(made));
  if (tensor.dtype() != node.Type("dtype")) {
    return absl::InvalidArgumentError(absl::StrCat("Type mismatch between value (",
                                                   DataTypeName(tensor.dtype()), ") and dtype (",
                                                   DataTypeName(node.Type("dtype")), ")"));
  }
  return tensor;
}

KernelOr MakeConst(const NodeAttrs& node) {
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, ConstantOf(node));
  return MakeFunctionKernel([tensor = std::move(tensor)](KernelContext& context) {
    context.set_output(0, tensor);
    return absl::OkStatus();
  });
}

KernelOr MakeForward(const NodeAttrs&) {
  return MakeFunctionKernel([](KernelContext& context) {
    for (int i = 0; i < context.input_count(); ++i) context.set_output(i, context.input(i));
    return absl::OkStatus();
  });
}

KernelOr MakeNoOp(const NodeAttrs&) {
  return MakeFunctionKernel([](KernelContext&) { return absl::OkStatus(); });
}

}  // namespace ferry::worker
