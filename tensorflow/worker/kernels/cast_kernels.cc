// SPDX-License-Identifier: Apache-2.0
// The Cast kernel.
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/graph/op_schema.h"
#include "tensorflow/worker/kernels/cast.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"

namespace ferry::worker {
namespace {

CastFunction Find(DataType from, DataType to, bool truncates) {
  CastFunction function = CastFromReal(from, to, truncates);
  if (function == nullptr) function = CastFromInteger(from, to);
  if (function == nullptr) function = CastFromComplex(from, to, truncates);
  return function;
}

}  // namespace

DataType PlainType(DataType dtype) {
  switch (dtype) {
    case DataType::kQint8:
      return DataType::kInt8;
    case DataType::kQuint8:
      return DataType::kUint8;
    case DataType::kQint16:
      return DataType::kInt16;
    case DataType::kQuint16:
      return DataType::kUint16;
    case DataType::kQint32:
      return DataType::kInt32;
    default:
      return dtype;
  }
}

KernelOr MakeCast(const NodeAttrs& node) {
  const graph::DataType from = node.Get("SrcT").type();
  const graph::DataType to = node.Get("DstT").type();
  if (from == to) return MakeForward(node);
  const DataType dtype = node.Type("DstT");
  const CastFunction cast =
      Find(PlainType(node.Type("SrcT")), PlainType(dtype), node.Bool("Truncate"));
  if (cast == nullptr) {
    return absl::UnimplementedError(absl::StrCat("Cast ", graph::TypeName(from), " to ",
                                                 graph::TypeName(to), " is not supported"));
  }
  return MakeFunctionKernel([dtype, cast](KernelContext& context) -> absl::Status {
    const Tensor& input = context.input(0);
    FERRY_ASSIGN_OR_RETURN(Tensor output, context.Allocate(dtype, input.shape()));
    cast(input.data(), output.mutable_data(), input.shape().element_count());
    context.set_output(0, std::move(output));
    return absl::OkStatus();
  });
}

}  // namespace ferry::worker
