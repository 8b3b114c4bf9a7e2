// SPDX-License-Identifier: Apache-2.0
// Kernels that read or change shapes without moving elements.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

absl::Status SetReshaped(KernelContext& context, absl::Span<const int64_t> dims) {
  FERRY_ASSIGN_OR_RETURN(Shape shape, ShapeOf(dims));
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, context.input(0).Reshape(std::move(shape)));
  context.set_output(0, std::move(tensor));
  return absl::OkStatus();
}

// A requested shape, in which one dimension may be unknown.
struct WantedShape {
  std::vector<int64_t> dims;
  int unknown = -1;
  // Product of the known, nonzero dimensions.
  int64_t product = 1;
  bool has_zero = false;
};

absl::StatusOr<WantedShape> ReadWantedShape(const Tensor& sizes) {
  if (!IsVector(sizes) && !IsScalar(sizes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sizes input must be 1-D, not ", ShapeText(sizes.shape())));
  }
  if (sizes.shape().element_count() >= Shape::kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat("too many dimensions: must be < ",
                                                   Shape::kMaxRank, ", but received ",
                                                   sizes.shape().element_count()));
  }
  WantedShape wanted;
  wanted.dims = IntsOf(sizes);
  bool overflows = false;
  for (int i = 0; i < static_cast<int>(wanted.dims.size()); ++i) {
    const int64_t dim = wanted.dims[static_cast<size_t>(i)];
    if (dim == -1) {
      if (wanted.unknown != -1) {
        return absl::InvalidArgumentError(
            absl::StrCat("Only one input size may be -1, not both ", wanted.unknown, " and ", i));
      }
      wanted.unknown = i;
    } else if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("Size ", i, " must be non-negative, not ", dim));
    } else if (dim == 0) {
      wanted.has_zero = true;
    } else if (__builtin_mul_overflow(wanted.product, dim, &wanted.product)) {
      overflows = true;
    }
    if (overflows) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shape [", absl::StrJoin(wanted.dims, ", "), "] has too many elements"));
    }
  }
  return wanted;
}

absl::Status Reshape(KernelContext& context) {
  FERRY_ASSIGN_OR_RETURN(WantedShape wanted, ReadWantedShape(context.input(1)));
  const Shape& shape = context.input(0).shape();
  if (wanted.unknown != -1) {
    // If an empty tensor stays empty, the unknown dimension follows from the nonzero dimensions.
    int64_t count = 1;
    bool leaves_zero = false;
    for (const int64_t dim : shape.dims()) {
      if (dim > 0 || !wanted.has_zero) {
        count *= dim;
      } else {
        leaves_zero = true;
      }
    }
    const int64_t missing = count / wanted.product;
    if (!leaves_zero && wanted.product * missing != count) {
      return absl::InvalidArgumentError(
          absl::StrCat("Input to reshape is a tensor with ", count,
                       " values, but the requested shape requires a multiple of ", wanted.product));
    }
    wanted.dims[static_cast<size_t>(wanted.unknown)] = missing;
  }
  FERRY_ASSIGN_OR_RETURN(const ferry::Shape target, ShapeOf(wanted.dims));
  if (target.element_count() != shape.element_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Input to reshape is a tensor with ", shape.element_count(),
                     " values, but the requested shape has ", target.element_count()));
  }
  return SetReshaped(context, target.dims());
}

absl::Status ExpandDims(KernelContext& context) {
  if (context.input(1).shape().element_count() != 1) {
    return absl::InvalidArgumentError("'dim' must be a tensor with a single value");
  }
  const absl::Span<const int64_t> dims = context.input(0).shape().dims();
  const int64_t rank = context.input(0).shape().rank();
  const int64_t dim = IntsOf(context.input(1))[0];
  if (dim < -1 - rank || dim > rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("Tried to expand dim index ", dim, " for tensor with ", rank, " dimensions."));
  }
  std::vector<int64_t> expanded(dims.begin(), dims.end());
  expanded.insert(expanded.begin() + (dim < 0 ? dim + rank + 1 : dim), 1);
  return SetReshaped(context, expanded);
}

absl::Status Squeeze(KernelContext& context, const std::vector<int64_t>& squeezed_dims) {
  const Shape& shape = context.input(0).shape();
  std::vector<bool> is_squeezed(static_cast<size_t>(shape.rank()), squeezed_dims.empty());
  for (const int64_t dim : squeezed_dims) {
    if (dim < -shape.rank() || dim >= shape.rank()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Tried to squeeze dim index ", dim, " for tensor with ", shape.rank(), " dimensions."));
    }
    is_squeezed[static_cast<size_t>(dim < 0 ? dim + shape.rank() : dim)] = true;
  }
  std::vector<int64_t> left;
  for (int i = 0; i < shape.rank(); ++i) {
    if (!is_squeezed[static_cast<size_t>(i)]) {
      left.push_back(shape.dim(i));
    } else if (shape.dim(i) != 1) {
      if (!squeezed_dims.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Can not squeeze dim[", i, "], expected a dimension of 1, got ", shape.dim(i)));
      }
      left.push_back(shape.dim(i));
    }
  }
  return SetReshaped(context, left);
}

template <typename T>
absl::Status ShapeAs(KernelContext& context, DataType dtype) {
  const Shape& shape = context.input(0).shape();
  const int64_t extents[] = {shape.rank()};
  FERRY_ASSIGN_OR_RETURN(const ferry::Shape vector, ShapeOf(extents));
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, context.Allocate(dtype, vector));
  for (int i = 0; i < shape.rank(); ++i) {
    // Rejects INT32_MAX too, as TensorFlow does.
    if (sizeof(T) == 4 && shape.dim(i) >= std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shape output type is 32-bit  but dim ", i, " is ", shape.dim(i)));
    }
    static_cast<T*>(tensor.mutable_data())[i] = static_cast<T>(shape.dim(i));
  }
  context.set_output(0, std::move(tensor));
  return absl::OkStatus();
}

}  // namespace

KernelOr MakeReshape(const NodeAttrs&) { return MakeFunctionKernel(Reshape); }

KernelOr MakeExpandDims(const NodeAttrs&) { return MakeFunctionKernel(ExpandDims); }

KernelOr MakeSqueeze(const NodeAttrs& node) {
  return MakeFunctionKernel([dims = node.Ints("squeeze_dims")](KernelContext& context) {
    return Squeeze(context, dims);
  });
}

KernelOr MakeShape(const NodeAttrs& node) {
  const DataType dtype = node.Type("out_type");
  return MakeFunctionKernel([dtype](KernelContext& context) {
    return dtype == DataType::kInt32 ? ShapeAs<int32_t>(context, dtype)
                                     : ShapeAs<int64_t>(context, dtype);
  });
}

KernelOr MakeRank(const NodeAttrs&) {
  return MakeFunctionKernel([](KernelContext& context) -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, context.Allocate(DataType::kInt32, Shape()));
    *static_cast<int32_t*>(tensor.mutable_data()) = context.input(0).shape().rank();
    context.set_output(0, std::move(tensor));
    return absl::OkStatus();
  });
}

}  // namespace ferry::worker
