// SPDX-License-Identifier: Apache-2.0
// Kernels that join or split tensors along an axis: Pack, ConcatV2, Unpack, Split, Slice.
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/run_writer.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

using Dims = std::vector<int64_t>;

Dims DimsOf(const Tensor& tensor) {
  return {tensor.shape().dims().begin(), tensor.shape().dims().end()};
}

int64_t Product(const Dims& dims, size_t first, size_t end) {
  int64_t product = 1;
  for (size_t i = first; i < end; ++i) product *= dims[i];
  return product;
}

// Returns elements [first, first + the shape's count), as a view if the type allows.
absl::StatusOr<Tensor> ElementsFrom(const KernelContext& context, const Tensor& tensor,
                                    int64_t first, const Shape& shape) {
  if (IsFixedSize(tensor.dtype())) {
    const size_t offset_bytes =
        tensor.offset_bytes() + static_cast<size_t>(first) * ElementBytes(tensor.dtype());
    return Tensor::Create(tensor.dtype(), shape, tensor.buffer(), offset_bytes);
  }
  FERRY_ASSIGN_OR_RETURN(RunWriter writer, RunWriter::Create(context, tensor.dtype(), shape));
  writer.Copy(0, tensor, first, shape.element_count());
  return std::move(writer).Finish();
}

// Input `i` contributes a row of row_counts[i] elements for each index before the axis.
absl::Status Join(KernelContext& context, absl::Span<const Tensor> parts, int64_t before,
                  const std::vector<int64_t>& row_counts, const Shape& shape) {
  FERRY_ASSIGN_OR_RETURN(RunWriter writer, RunWriter::Create(context, parts[0].dtype(), shape));
  if (shape.element_count() > 0) {
    int64_t at = 0;
    for (int64_t row = 0; row < before; ++row) {
      for (size_t i = 0; i < parts.size(); ++i) {
        writer.Copy(at, parts[i], row * row_counts[i], row_counts[i]);
        at += row_counts[i];
      }
    }
  }
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, std::move(writer).Finish());
  context.set_output(0, std::move(tensor));
  return absl::OkStatus();
}

absl::Status Pack(KernelContext& context, int64_t axis_attr) {
  const Tensor& first = context.input(0);
  const int rank = first.shape().rank() + 1;
  const int64_t axis = axis_attr < 0 ? axis_attr + rank : axis_attr;
  if (axis < 0 || axis >= rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("axis = ", axis_attr, " not in [", -rank, ", ", rank, ")"));
  }
  for (int i = 1; i < context.input_count(); ++i) {
    if (context.input(i).shape() == first.shape()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Shapes of all inputs must match: values[0].shape = ", ShapeText(first.shape()),
        " != values[", i, "].shape = ", ShapeText(context.input(i).shape())));
  }
  Dims dims = DimsOf(first);
  const int64_t before = Product(dims, 0, static_cast<size_t>(axis));
  const int64_t after = Product(dims, static_cast<size_t>(axis), dims.size());
  dims.insert(dims.begin() + axis, context.input_count());
  FERRY_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(dims));
  if (context.input_count() == 1) {
    FERRY_ASSIGN_OR_RETURN(Tensor tensor, first.Reshape(shape));
    context.set_output(0, std::move(tensor));
    return absl::OkStatus();
  }
  const std::vector<int64_t> row_counts(static_cast<size_t>(context.input_count()), after);
  return Join(context, context.inputs(), before, row_counts, shape);
}

absl::Status Concat(KernelContext& context) {
  const absl::Span<const Tensor> values =
      context.inputs().subspan(0, static_cast<size_t>(context.input_count()) - 1);
  const Tensor& axis_tensor = context.inputs().back();
  if (axis_tensor.shape().element_count() != 1 || axis_tensor.shape().rank() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "axis tensor should be a scalar integer, but got shape ", ShapeText(axis_tensor.shape())));
  }
  const Shape& first = values[0].shape();
  const int64_t axis_value = IntsOf(axis_tensor)[0];
  const int64_t axis = axis_value < 0 ? axis_value + first.rank() : axis_value;
  if (first.rank() == 0 && axis == 0) {
    return absl::InvalidArgumentError(
        "ConcatOp : Can't concatenate scalars (use tf.stack instead)");
  }
  if (axis < 0 || axis >= first.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ConcatOp : Expected concatenating dimensions in the range [", -first.rank(),
                     ", ", first.rank(), "), but got ", axis_value));
  }
  Dims dims = DimsOf(values[0]);
  const size_t axis_index = static_cast<size_t>(axis);
  const int64_t before = Product(dims, 0, axis_index);
  const int64_t after = Product(dims, axis_index + 1, dims.size());
  std::vector<int64_t> row_counts;
  int64_t extent = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const Shape& shape = values[i].shape();
    if (shape.rank() != first.rank()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ConcatOp : Ranks of all input tensors should match: shape[0] = ", ShapeText(first),
          " vs. shape[", i, "] = ", ShapeText(shape)));
    }
    for (int j = 0; j < first.rank(); ++j) {
      if (j == axis || shape.dim(j) == first.dim(j)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("ConcatOp : Dimension ", j, " in both shapes must be equal: shape[0] = ",
                       ShapeText(first), " vs. shape[", i, "] = ", ShapeText(shape)));
    }
    row_counts.push_back(shape.dim(static_cast<int>(axis)) * after);
    if (__builtin_add_overflow(extent, shape.dim(static_cast<int>(axis)), &extent)) {
      return absl::InvalidArgumentError("ConcatOp : the inputs are too long together");
    }
  }
  dims[axis_index] = extent;
  FERRY_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(dims));
  return Join(context, values, before, row_counts, shape);
}

// Sets the outputs to parts of `shape`, adjacent along `axis` of `input`.
absl::Status Part(KernelContext& context, const Tensor& input, size_t axis, const Shape& shape) {
  const Dims dims = DimsOf(input);
  const int64_t before = Product(dims, 0, axis);
  const int64_t row_count = Product(dims, axis, dims.size());
  const int64_t piece_count = before == 0 ? 0 : shape.element_count() / before;
  for (int i = 0; i < context.output_count(); ++i) {
    Tensor piece;
    if (before <= 1 || shape.element_count() == 0) {
      FERRY_ASSIGN_OR_RETURN(
          piece, ElementsFrom(context, input, before == 0 ? 0 : i * piece_count, shape));
    } else {
      FERRY_ASSIGN_OR_RETURN(RunWriter writer, RunWriter::Create(context, input.dtype(), shape));
      for (int64_t row = 0; row < before; ++row) {
        writer.Copy(row * piece_count, input, row * row_count + i * piece_count, piece_count);
      }
      FERRY_ASSIGN_OR_RETURN(piece, std::move(writer).Finish());
    }
    context.set_output(i, std::move(piece));
  }
  return absl::OkStatus();
}

absl::Status Unpack(KernelContext& context, int64_t axis_attr) {
  const Tensor& input = context.input(0);
  const int rank = input.shape().rank();
  const int64_t axis = axis_attr < 0 ? axis_attr + rank : axis_attr;
  if (axis < 0 || axis >= rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("axis = ", axis_attr, " not in [", -rank, ", ", rank, ")"));
  }
  if (input.shape().dim(static_cast<int>(axis)) != context.output_count()) {
    return absl::InvalidArgumentError(absl::StrCat("Input shape axis ", axis, " must equal ",
                                                   context.output_count(), ", got shape ",
                                                   ShapeText(input.shape())));
  }
  Dims dims = DimsOf(input);
  dims.erase(dims.begin() + axis);
  FERRY_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(dims));
  return Part(context, input, static_cast<size_t>(axis), shape);
}

absl::Status Split(KernelContext& context) {
  const Tensor& axis_tensor = context.input(0);
  const Tensor& input = context.input(1);
  if (!IsScalar(axis_tensor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("split_dim must be a scalar but has rank ", axis_tensor.shape().rank()));
  }
  const int rank = input.shape().rank();
  const int64_t axis_value = IntsOf(axis_tensor)[0];
  const int64_t axis = axis_value < 0 ? axis_value + rank : axis_value;
  if (axis < 0 || axis >= rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "-input rank(-", rank, ") <= split_dim < input rank (", rank, "), but got ", axis_value));
  }
  Dims dims = DimsOf(input);
  int64_t& extent = dims[static_cast<size_t>(axis)];
  if (extent % context.output_count() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Number of ways to split should evenly divide the split dimension, but got split_dim ",
        axis, " (size = ", extent, ") and num_split ", context.output_count()));
  }
  extent /= context.output_count();
  FERRY_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(dims));
  return Part(context, input, static_cast<size_t>(axis), shape);
}

// Begin and size of a slice, per dimension.
struct Box {
  Dims begin;
  Dims size;
};

absl::StatusOr<Box> ReadBox(const KernelContext& context) {
  const Shape& shape = context.input(0).shape();
  const Tensor& begin = context.input(1);
  const Tensor& size = context.input(2);
  if (!IsVector(begin) || !IsVector(size) || begin.shape().dim(0) != shape.rank() ||
      size.shape().dim(0) != shape.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Expected begin and size arguments to be 1-D tensors of size ", shape.rank(),
                     ", but got shapes ", ShapeText(begin.shape()), " and ",
                     ShapeText(size.shape()), " instead."));
  }
  Box box = {IntsOf(begin), IntsOf(size)};
  for (int i = 0; i < shape.rank(); ++i) {
    const int64_t dim = shape.dim(i);
    const int64_t first = box.begin[static_cast<size_t>(i)];
    int64_t& count = box.size[static_cast<size_t>(i)];
    // -1 means up to the end. The difference may overflow, which is rejected below.
    if (count == -1) __builtin_sub_overflow(dim, first, &count);
    if (dim == 0) {
      if (first == 0 && count == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("Expected begin[", i, "] == 0 (got ", first,
                                                     ") and size[", i, "] == 0 (got ", count,
                                                     ") when input.dim_size(", i, ") == 0"));
    }
    if (first < 0 || first > dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("Expected begin[", i, "] in [0, ", dim, "], but got ", first));
    }
    if (count < 0 || count > dim - first) {
      return absl::InvalidArgumentError(
          absl::StrCat("Expected size[", i, "] in [0, ", dim - first, "], but got ", count));
    }
  }
  return box;
}

absl::Status Slice(KernelContext& context) {
  FERRY_ASSIGN_OR_RETURN(const Box box, ReadBox(context));
  const Tensor& input = context.input(0);
  FERRY_ASSIGN_OR_RETURN(const Shape shape, ShapeOf(box.size));
  const Dims dims = DimsOf(input);
  // Dimensions from `inner` on are taken whole, so their elements are contiguous, as is a range of
  // the dimension before them.
  size_t inner = dims.size();
  while (inner > 0 && box.size[inner - 1] == dims[inner - 1]) --inner;
  const size_t row_dim = inner == 0 ? 0 : inner - 1;
  const int64_t row_count = Product(box.size, row_dim, dims.size());
  std::vector<int64_t> strides(dims.size(), 1);
  int64_t at = 0;
  for (size_t i = dims.size(); i-- > 0;) {
    if (i + 1 < dims.size()) strides[i] = strides[i + 1] * dims[i + 1];
    at += box.begin[i] * strides[i];
  }
  if (Product(box.size, 0, row_dim) == 1 || shape.element_count() == 0) {
    FERRY_ASSIGN_OR_RETURN(
        Tensor tensor, ElementsFrom(context, input, shape.element_count() == 0 ? 0 : at, shape));
    context.set_output(0, std::move(tensor));
    return absl::OkStatus();
  }
  FERRY_ASSIGN_OR_RETURN(RunWriter writer, RunWriter::Create(context, input.dtype(), shape));
  Dims index(row_dim, 0);
  for (int64_t written = 0; written < shape.element_count(); written += row_count) {
    writer.Copy(written, input, at, row_count);
    for (size_t i = row_dim; i-- > 0;) {
      at += strides[i];
      if (++index[i] < box.size[i]) break;
      at -= box.size[i] * strides[i];
      index[i] = 0;
    }
  }
  FERRY_ASSIGN_OR_RETURN(Tensor tensor, std::move(writer).Finish());
  context.set_output(0, std::move(tensor));
  return absl::OkStatus();
}

}  // namespace

KernelOr MakePack(const NodeAttrs& node) {
  return MakeFunctionKernel(
      [axis = node.Int("axis")](KernelContext& context) { return Pack(context, axis); });
}

KernelOr MakeConcat(const NodeAttrs&) { return MakeFunctionKernel(Concat); }

KernelOr MakeUnpack(const NodeAttrs& node) {
  return MakeFunctionKernel(
      [axis = node.Int("axis")](KernelContext& context) { return Unpack(context, axis); });
}

KernelOr MakeSplit(const NodeAttrs&) { return MakeFunctionKernel(Split); }

KernelOr MakeSlice(const NodeAttrs&) { return MakeFunctionKernel(Slice); }

}  // namespace ferry::worker
