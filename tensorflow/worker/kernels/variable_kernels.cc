// SPDX-License-Identifier: Apache-2.0
// Kernels of resource variables.
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/add.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/gpu_families.h"
#include "tensorflow/worker/kernels/shapes.h"
#include "tensorflow/worker/variables.h"

namespace ferry::worker {
namespace {

// TensorFlow's name for variables that are new in every step.
constexpr absl::string_view kAnonymousName = "cd2c89b7-88b7-44c8-ad83-06c2a9158347";

absl::StatusOr<Variables*> VariablesOf(const KernelContext& context) {
  if (context.variables() == nullptr) {
    return absl::FailedPreconditionError("this device keeps no variables");
  }
  return context.variables();
}

absl::StatusOr<std::shared_ptr<Variable>> FindVariable(const KernelContext& context) {
  FERRY_ASSIGN_OR_RETURN(const Variables* variables, VariablesOf(context));
  FERRY_ASSIGN_OR_RETURN(const ResourceHandle handle, HandleFromTensor(context.input(0)));
  return variables->Find(handle);
}

absl::Status Assign(KernelContext& context, DataType dtype, bool validates_shape) {
  FERRY_ASSIGN_OR_RETURN(Variables* const variables, VariablesOf(context));
  FERRY_ASSIGN_OR_RETURN(const ResourceHandle handle, HandleFromTensor(context.input(0)));
  const Tensor& value = context.input(1);
  if (value.dtype() != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("Variable and value dtypes don't match; respectively, ", DataTypeName(dtype),
                     " and ", DataTypeName(value.dtype())));
  }
  FERRY_ASSIGN_OR_RETURN(const std::shared_ptr<Variable> variable,
                         variables->FindOrCreate(handle, dtype));
  if (variable->dtype() != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("Trying to assign variable with wrong dtype. Expected ",
                     DataTypeName(variable->dtype()), " got ", DataTypeName(dtype)));
  }
  if (validates_shape) {
    const Tensor old = variable->value();
    if (old.is_valid() && !(old.shape() == value.shape())) {
      return absl::InvalidArgumentError(
          absl::StrCat("Trying to assign to variable with tensor with wrong shape. Expected ",
                       ShapeText(old.shape()), " got ", ShapeText(value.shape())));
    }
  }
  variable->Assign(value);
  return absl::OkStatus();
}

// `sum(old, value, is_own)` returns the variable's new value; see Variable::Modify.
template <typename Sum>
absl::Status AssignAdd(KernelContext& context, Sum&& sum) {
  FERRY_ASSIGN_OR_RETURN(const std::shared_ptr<Variable> variable, FindVariable(context));
  const Tensor& value = context.input(1);
  return variable->Modify([&value, &sum](const Tensor& old, bool is_own) -> absl::StatusOr<Tensor> {
    if (!old.is_valid()) {
      return absl::FailedPreconditionError("Trying to add to a variable without a value");
    }
    if (!(old.shape() == value.shape())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Cannot update variable with shape ", ShapeText(old.shape()),
          " using a Tensor with shape ", ShapeText(value.shape()), ", shapes must be equal."));
    }
    if (old.dtype() != value.dtype()) {
      return absl::InvalidArgumentError("DType of variable handle and value does not match.");
    }
    return sum(old, value, is_own);
  });
}

absl::Status AssignAddOnHost(KernelContext& context) {
  return AssignAdd(
      context,
      [&context](const Tensor& old, const Tensor& value, bool is_own) -> absl::StatusOr<Tensor> {
        Tensor sum = old;
        if (!is_own) {
          FERRY_ASSIGN_OR_RETURN(sum, context.Allocate(old.dtype(), old.shape()));
        }
        AddArrays(old.dtype(), old.data(), value.data(), sum.mutable_data(),
                  old.shape().element_count());
        return sum;
      });
}

absl::Status Read(KernelContext& context, DataType dtype) {
  FERRY_ASSIGN_OR_RETURN(const ResourceHandle handle, HandleFromTensor(context.input(0)));
  const absl::StatusOr<std::shared_ptr<Variable>> variable = FindVariable(context);
  Tensor value;
  if (variable.ok()) value = (*variable)->value();
  if (!value.is_valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Could not find variable ", handle.name,
                     ". This could mean that the variable has been deleted. In TF1, it can also "
                     "mean the variable is uninitialized. Debug info: container=",
                     handle.container, ", status error message=", variable.status().message()));
  }
  if (value.dtype() != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("Trying to read variable with wrong dtype. Expected ", DataTypeName(dtype),
                     " got ", DataTypeName(value.dtype())));
  }
  context.set_output(0, std::move(value));
  return absl::OkStatus();
}

absl::Status IsInitialized(KernelContext& context) {
  FERRY_RETURN_IF_ERROR(VariablesOf(context).status());
  FERRY_RETURN_IF_ERROR(HandleFromTensor(context.input(0)).status());
  const absl::StatusOr<std::shared_ptr<Variable>> variable = FindVariable(context);
  FERRY_ASSIGN_OR_RETURN(Tensor answer, context.Allocate(DataType::kBool, Shape()));
  *static_cast<bool*>(answer.mutable_data()) = variable.ok() && (*variable)->value().is_valid();
  context.set_output(0, std::move(answer));
  return absl::OkStatus();
}

}  // namespace

KernelOr MakeVarHandle(const NodeAttrs& node) {
  FERRY_RETURN_IF_ERROR(CheckPartialShape(node.Get("shape").shape()));
  ResourceHandle handle;
  handle.container = node.String("container");
  if (handle.container.empty()) handle.container = std::string(Variables::kDefaultContainer);
  handle.name = node.String("shared_name");
  if (handle.name == kAnonymousName) {
    return absl::UnimplementedError(
        absl::StrCat("VarHandleOp ", node.name(), " asks for an anonymous variable"));
  }
  return MakeFunctionKernel([handle](KernelContext& context) -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(const Variables* const variables, VariablesOf(context));
    ResourceHandle placed = handle;
    placed.device = variables->device();
    context.set_output(0, HandleToTensor(placed));
    return absl::OkStatus();
  });
}

KernelOr MakeAssignVariable(const NodeAttrs& node) {
  return MakeFunctionKernel([dtype = node.Type("dtype"),
                             validates = node.Bool("validate_shape")](KernelContext& context) {
    return Assign(context, dtype, validates);
  });
}

KernelOr MakeAssignAddVariable(const NodeAttrs&) { return MakeFunctionKernel(AssignAddOnHost); }

// Never in place: other streams may be reading the value.
KernelOr MakeGpuAssignAddVariable(const NodeAttrs& node, const KernelGpu& gpu) {
  return MakeGpuKernel(node, gpu, [](KernelContext& context, GpuCompute& compute) {
    return AssignAdd(context, [&compute](const Tensor& old, const Tensor& value, bool) {
      return AddOnGpu(compute, old, value);
    });
  });
}

KernelOr MakeReadVariable(const NodeAttrs& node) {
  return MakeFunctionKernel(
      [dtype = node.Type("dtype")](KernelContext& context) { return Read(context, dtype); });
}

KernelOr MakeVarIsInitialized(const NodeAttrs&) { return MakeFunctionKernel(IsInitialized); }

}  // namespace ferry::worker
