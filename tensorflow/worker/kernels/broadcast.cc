// SPDX-License-Identifier: Apache-2.0
// Computes the broadcast shape and strides.
#include "tensorflow/worker/kernels/broadcast.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {

absl::StatusOr<Broadcast> BroadcastOf(const Shape& x, const Shape& y) {
  const int rank = std::max(x.rank(), y.rank());
  // Returns the i-th dimension from the end.
  const auto dim = [](const Shape& shape, int i) {
    return i < shape.rank() ? shape.dim(shape.rank() - 1 - i) : 1;
  };
  Broadcast result;
  std::vector<int64_t> dims(static_cast<size_t>(rank));
  int64_t x_stride = 1;
  int64_t y_stride = 1;
  // From the last dimension to the first; reversed at the end.
  for (int i = 0; i < rank; ++i) {
    const int64_t x_dim = dim(x, i);
    const int64_t y_dim = dim(y, i);
    if (x_dim != y_dim && x_dim != 1 && y_dim != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("Incompatible shapes: ", ShapeText(x), " vs. ", ShapeText(y)));
    }
    const int64_t extent = x_dim == 1 ? y_dim : x_dim;
    dims[static_cast<size_t>(rank - 1 - i)] = extent;
    if (extent == 1) continue;
    const int64_t x_step = x_dim == 1 ? 0 : x_stride;
    const int64_t y_step = y_dim == 1 ? 0 : y_stride;
    x_stride *= x_dim;
    y_stride *= y_dim;
    const bool is_first = result.extents.empty();
    if (!is_first && (x_step == 0) == (result.x_strides.back() == 0) &&
        (y_step == 0) == (result.y_strides.back() == 0)) {
      result.extents.back() *= extent;
      continue;
    }
    result.extents.push_back(extent);
    result.x_strides.push_back(x_step);
    result.y_strides.push_back(y_step);
  }
  FERRY_ASSIGN_OR_RETURN(result.shape, ShapeOf(dims));
  if (result.extents.empty()) {
    result.extents.push_back(1);
    result.x_strides.push_back(1);
    result.y_strides.push_back(1);
  }
  std::reverse(result.extents.begin(), result.extents.end());
  std::reverse(result.x_strides.begin(), result.x_strides.end());
  std::reverse(result.y_strides.begin(), result.y_strides.end());
  return result;
}

}  // namespace ferry::worker
