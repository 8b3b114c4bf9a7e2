// SPDX-License-Identifier: Apache-2.0
// The Transpose kernel.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/run_writer.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

// One dimension of the output: its extent, and the stride of its elements in the input.
struct Axis {
  int64_t extent = 1;
  int64_t stride = 1;
};

struct Permutation {
  std::vector<int64_t> axes;
  Shape shape;
};

absl::StatusOr<Permutation> ReadPermutation(const Shape& shape, const Tensor& perm) {
  if (!IsVector(perm)) {
    return absl::InvalidArgumentError(
        absl::StrCat("perm must be rank 1, got shape ", ShapeText(perm.shape())));
  }
  const int rank = shape.rank();
  if (perm.shape().element_count() != rank) {
    return absl::InvalidArgumentError(absl::StrCat("transpose expects a vector of size ", rank,
                                                   ". But input(1) is a vector of size ",
                                                   perm.shape().element_count()));
  }
  Permutation result;
  result.axes = IntsOf(perm);
  std::vector<bool> is_there(static_cast<size_t>(rank), false);
  std::vector<int64_t> dims;
  for (int64_t& axis : result.axes) {
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) {
      return absl::InvalidArgumentError(absl::StrCat(axis, " is out of range [0 .. ", rank, ")"));
    }
    is_there[static_cast<size_t>(axis)] = true;
    dims.push_back(shape.dim(static_cast<int>(axis)));
  }
  for (int i = 0; i < rank; ++i) {
    if (is_there[static_cast<size_t>(i)]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(i, " is missing from {", absl::StrJoin(result.axes, ","), "}."));
  }
  FERRY_ASSIGN_OR_RETURN(result.shape, ShapeOf(dims));
  return result;
}

// Returns the output's axes, without those of extent 1; axes contiguous in both tensors are merged.
std::vector<Axis> AxesOf(const Shape& shape, const std::vector<int64_t>& order) {
  std::vector<int64_t> strides(order.size(), 1);
  for (size_t i = order.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * shape.dim(static_cast<int>(i));
  }
  std::vector<Axis> axes;
  for (const int64_t index : order) {
    const Axis axis = {shape.dim(static_cast<int>(index)), strides[static_cast<size_t>(index)]};
    if (axis.extent == 1) continue;
    if (!axes.empty() && axes.back().stride == axis.stride * axis.extent) {
      axes.back() = {axes.back().extent * axis.extent, axis.stride};
    } else {
      axes.push_back(axis);
    }
  }
  return axes;
}

// Transposes one tile: each cache line is read once and written once, whatever the strides.
template <typename T, int64_t kSide>
void TransposeSquare(const T* from, int64_t from_step, int64_t height, T* to, int64_t to_step,
                     int64_t width) {
  T square[kSide][kSide];
  for (int64_t j = 0; j < width; ++j) std::copy_n(from + j * from_step, height, square[j]);
  for (int64_t i = 0; i < height; ++i) {
    T* const target = to + i * to_step;
    for (int64_t j = 0; j < width; ++j) target[j] = square[j][i];
  }
}

// Transposes two axes, of which the first is contiguous in the input: tile by tile, in blocks of
// tiles that span few pages.
template <typename T>
void TransposeSquares(const T* from, T* to, int64_t rows, int64_t row_step, const Axis& column) {
  constexpr int64_t kSide = std::max<int64_t>(8, 64 / sizeof(T));
  constexpr int64_t kBlock = 8 * kSide;
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    const int64_t i1 = std::min(rows, i0 + kBlock);
    for (int64_t j0 = 0; j0 < column.extent; j0 += kBlock) {
      const int64_t j1 = std::min(column.extent, j0 + kBlock);
      for (int64_t i = i0; i < i1; i += kSide) {
        for (int64_t j = j0; j < j1; j += kSide) {
          TransposeSquare<T, kSide>(from + j * column.stride + i, column.stride,
                                    std::min(kSide, i1 - i), to + i * row_step + j, row_step,
                                    std::min(kSide, j1 - j));
        }
      }
    }
  }
}

template <typename T>
void TransposePlane(const T* from, T* to, const Axis& row, int64_t row_step, const Axis& column) {
  if (row.stride == 1) return TransposeSquares(from, to, row.extent, row_step, column);
  for (int64_t i = 0; i < row.extent; ++i) {
    const T* const source = from + i * row.stride;
    T* const target = to + i * row_step;
    if (column.stride == 1) {
      std::copy_n(source, column.extent, target);
    } else {
      for (int64_t j = 0; j < column.extent; ++j) target[j] = source[j * column.stride];
    }
  }
}

// REQUIRES: at least two axes, with at least one element each.
template <typename T>
void TransposeElements(const T* from, T* to, const std::vector<Axis>& axes) {
  std::vector<int64_t> steps(axes.size(), 1);
  for (size_t i = axes.size(); i-- > 1;) steps[i - 1] = steps[i] * axes[i].extent;
  const size_t last = axes.size() - 1;
  // Pairs the last axis with the one that has the smallest input stride.
  size_t other = 0;
  for (size_t i = 1; i < last; ++i) {
    if (axes[i].stride < axes[other].stride) other = i;
  }
  std::vector<int64_t> index(axes.size(), 0);
  for (;;) {
    TransposePlane(from, to, axes[other], steps[other], axes[last]);
    size_t i = last;
    for (;;) {
      if (i == 0) return;
      --i;
      if (i == other) continue;
      from += axes[i].stride;
      to += steps[i];
      if (++index[i] < axes[i].extent) break;
      from -= axes[i].stride * axes[i].extent;
      to -= steps[i] * axes[i].extent;
      index[i] = 0;
    }
  }
}

struct Bytes16 {
  uint64_t parts[2];
};

absl::StatusOr<Tensor> Transposed(const KernelContext& context, const Tensor& input,
                                  const Shape& shape, const std::vector<Axis>& axes) {
  if (input.dtype() == DataType::kString) {
    FERRY_RETURN_IF_ERROR(CheckStrings(context, shape));
    std::vector<std::string> strings(static_cast<size_t>(shape.element_count()));
    TransposeElements(input.strings().data(), strings.data(), axes);
    return Tensor::OfStrings(shape, std::move(strings));
  }
  FERRY_ASSIGN_OR_RETURN(Tensor output, context.Allocate(input.dtype(), shape));
  const auto transpose = [&input, &output, &axes](auto element) {
    using T = decltype(element);
    TransposeElements(static_cast<const T*>(input.data()), static_cast<T*>(output.mutable_data()),
                      axes);
  };
  switch (ElementBytes(input.dtype())) {
    case 1:
      transpose(uint8_t());
      break;
    case 2:
      transpose(uint16_t());
      break;
    case 4:
      transpose(uint32_t());
      break;
    case 8:
      transpose(uint64_t());
      break;
    default:
      FERRY_CHECK(ElementBytes(input.dtype()) == sizeof(Bytes16));
      transpose(Bytes16());
  }
  return output;
}

absl::Status Transpose(KernelContext& context) {
  const Tensor& input = context.input(0);
  FERRY_ASSIGN_OR_RETURN(const Permutation permutation,
                         ReadPermutation(input.shape(), context.input(1)));
  const std::vector<Axis> axes = AxesOf(input.shape(), permutation.axes);
  if (axes.size() < 2 || permutation.shape.element_count() == 0) {
    FERRY_ASSIGN_OR_RETURN(Tensor output, input.Reshape(permutation.shape));
    context.set_output(0, std::move(output));
    return absl::OkStatus();
  }
  FERRY_ASSIGN_OR_RETURN(Tensor output, Transposed(context, input, permutation.shape, axes));
  context.set_output(0, std::move(output));
  return absl::OkStatus();
}

}  // namespace

KernelOr MakeTranspose(const NodeAttrs&) { return MakeFunctionKernel(Transpose); }

}  // namespace ferry::worker
