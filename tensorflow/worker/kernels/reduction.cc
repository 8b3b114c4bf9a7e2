// SPDX-License-Identifier: Apache-2.0
// Reads a reduction's axes.
#include "tensorflow/worker/kernels/reduction.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

absl::StatusOr<std::vector<bool>> ReadAxes(const Shape& shape, const Tensor& axes) {
  std::vector<bool> is_reduced(static_cast<size_t>(shape.rank()), false);
  for (const int64_t axis : IntsOf(axes)) {
    if (axis < -shape.rank() || axis >= shape.rank()) {
      return absl::InvalidArgumentError(absl::StrCat("Invalid reduction dimension (", axis,
                                                     " for input with ", shape.rank(),
                                                     " dimension(s)"));
    }
    const int64_t index = axis < 0 ? axis + shape.rank() : axis;
    if (is_reduced[static_cast<size_t>(index)]) {
      return absl::InvalidArgumentError(
          absl::StrCat("Invalid reduction arguments: Axes contains duplicate dimension: ", index));
    }
    is_reduced[static_cast<size_t>(index)] = true;
  }
  return is_reduced;
}

}  // namespace

absl::StatusOr<Reduction> ReductionOf(const Shape& shape, const Tensor& axes, bool keeps_dims) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<bool> is_reduced, ReadAxes(shape, axes));
  Reduction result;
  std::vector<int64_t> dims;
  int64_t stride = 1;
  // From the last dimension to the first; reversed at the end.
  for (int i = shape.rank(); i-- > 0;) {
    const bool vanishes = is_reduced[static_cast<size_t>(i)];
    const int64_t extent = shape.dim(i);
    if (!vanishes || keeps_dims) dims.push_back(vanishes ? 1 : extent);
    if (extent == 1) continue;
    if (!result.extents.empty() && (result.out_strides.back() == 0) == vanishes) {
      result.extents.back() *= extent;
    } else {
      result.extents.push_back(extent);
      result.out_strides.push_back(vanishes ? 0 : stride);
    }
    if (vanishes) {
      result.reduced_count *= extent;
    } else {
      stride *= extent;
    }
  }
  if (result.extents.empty()) {
    result.extents.push_back(1);
    result.out_strides.push_back(1);
  }
  std::reverse(dims.begin(), dims.end());
  std::reverse(result.extents.begin(), result.extents.end());
  std::reverse(result.out_strides.begin(), result.out_strides.end());
  FERRY_ASSIGN_OR_RETURN(result.shape, ShapeOf(dims));
  return result;
}

}  // namespace ferry::worker
