// SPDX-License-Identifier: Apache-2.0
// Shape: the extents of a tensor, with an element count that cannot overflow.
#ifndef FERRY_TENSOR_SHAPE_H_
#define FERRY_TENSOR_SHAPE_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ferry {

// A value type: copyable, comparable, immutable. Row-major: the last dimension is contiguous.
class Shape {
 public:
  // TensorFlow's limit.
  static constexpr int kMaxRank = 254;

  // A scalar: no dimensions, one element. Not defaulted, as Tensor().
  Shape() {}  // NOLINT(modernize-use-equals-default)

  //   Errors: INVALID_ARGUMENT for a negative extent, more than kMaxRank of them, or an element
  //   count beyond 2^63 - 1, even if another extent is 0.
  static absl::StatusOr<Shape> Create(absl::Span<const int64_t> dims);

  // One dimension. REQUIRES: not negative.
  static Shape Vector(int64_t extent) {
    Shape shape;
    shape.dims_.push_back(extent);
    shape.element_count_ = extent;
    return shape;
  }

  int rank() const { return static_cast<int>(dims_.size()); }
  absl::Span<const int64_t> dims() const { return dims_; }
  int64_t dim(int index) const { return dims_[static_cast<size_t>(index)]; }
  int64_t element_count() const { return element_count_; }

  friend bool operator==(const Shape& a, const Shape& b) { return a.dims_ == b.dims_; }

 private:
  absl::InlinedVector<int64_t, 4> dims_;
  int64_t element_count_ = 1;
};

// "[2,3]"; "[]" for a scalar.
std::string ToString(const Shape& shape);
std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace ferry

#endif  // FERRY_TENSOR_SHAPE_H_
