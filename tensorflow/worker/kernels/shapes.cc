// SPDX-License-Identifier: Apache-2.0
// Converts shapes from and to tensors and text.
#include "tensorflow/worker/kernels/shapes.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"

namespace ferry::worker {

std::string PartialShapeText(const tensorflow::TensorShapeProto& shape) {
  if (shape.unknown_rank()) return "<unknown>";
  std::string text = "[";
  for (int i = 0; i < shape.dim_size(); ++i) {
    if (i > 0) text += ",";
    if (shape.dim(i).size() == -1) {
      text += "?";
    } else {
      absl::StrAppend(&text, shape.dim(i).size());
    }
  }
  return text + "]";
}

absl::Status CheckPartialShape(const tensorflow::TensorShapeProto& shape) {
  if (shape.unknown_rank()) {
    if (shape.dim().empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("An unknown shape must not have any dimensions set.");
  }
  if (shape.dim_size() > static_cast<int>(Shape::kMaxRank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Shape ", PartialShapeText(shape), " has too many dimensions"));
  }
  // -1 once a dimension is unknown.
  int64_t count = 1;
  for (const auto& dim : shape.dim()) {
    if (dim.size() < -1) {
      return absl::InvalidArgumentError(
          absl::StrCat("Shape ", PartialShapeText(shape),
                       " has dimensions with values below -1 (where -1 means unknown)"));
    }
    if (dim.size() == -1) {
      count = -1;
    } else if (count >= 0 && __builtin_mul_overflow(count, dim.size(), &count)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Shape ", PartialShapeText(shape), " is too large (more than 2**63 - 1 entries)"));
    }
  }
  return absl::OkStatus();
}

std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape.dims(), ","), "]");
}

std::vector<int64_t> IntsOf(const Tensor& tensor) {
  if (tensor.dtype() == DataType::kInt32) {
    const absl::Span<const int32_t> values = tensor.elements<int32_t>();
    return {values.begin(), values.end()};
  }
  FERRY_CHECK(tensor.dtype() == DataType::kInt64);
  const absl::Span<const int64_t> values = tensor.elements<int64_t>();
  return {values.begin(), values.end()};
}

absl::StatusOr<Shape> ShapeOf(absl::Span<const int64_t> dims) {
  if (dims.size() > Shape::kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat("Too many dimensions in tensor: ", dims.size(),
                                                   ", at most ", Shape::kMaxRank));
  }
  for (const int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(absl::StrCat("Dimension ", dim, " must be >= 0"));
    }
  }
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (shape.ok()) return shape;
  return absl::InvalidArgumentError(absl::StrCat("Shape [", absl::StrJoin(dims, ","),
                                                 "] would have more than 2**63 - 1 elements"));
}

}  // namespace ferry::worker
