// SPDX-License-Identifier: Apache-2.0
// Checked extents.
#include "tensor/shape.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ferry {
namespace {

std::string Join(absl::Span<const int64_t> dims) {
  constexpr size_t kShown = 16;
  return absl::StrCat("[", absl::StrJoin(dims.subspan(0, kShown), ","),
                      dims.size() > kShown ? ",..." : "", "]");
}

}  // namespace

absl::StatusOr<Shape> Shape::Create(absl::Span<const int64_t> dims) {
  if (dims.size() > kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a shape of ", dims.size(), " dimensions; at most ", kMaxRank, " are possible"));
  }
  // Zeros are skipped: a shape that only an empty tensor can have must not overflow when it is
  // reshaped.
  int64_t product = 1;
  bool is_empty = false;
  for (const int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", Join(dims), " has a negative dimension"));
    }
    if (dim == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(product, dim, &product)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", Join(dims), " has more than 2^63 - 1 elements"));
    }
  }
  Shape shape;
  shape.dims_.assign(dims.begin(), dims.end());
  shape.element_count_ = is_empty ? 0 : product;
  return shape;
}

std::string ToString(const Shape& shape) { return Join(shape.dims()); }

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << ToString(shape); }

}  // namespace ferry
