// SPDX-License-Identifier: Apache-2.0
// Conversions from floating-point types.
#include "tensorflow/worker/kernels/cast_elements.h"

namespace ferry::worker {
namespace {

CastFunction FindTruncation(DataType from, DataType to) {
  CastFunction function = nullptr;
  if (from == DataType::kFloat) {
    WithType(TypeSet<Half, Bfloat16>(), to, [&function](auto tag) {
      function = TruncateArray<typename decltype(tag)::Type, float>;
    });
  } else if (from == DataType::kDouble) {
    WithType(TypeSet<Half, float, Complex64>(), to, [&function](auto tag) {
      function = TruncateArray<typename decltype(tag)::Type, double>;
    });
  }
  return function;
}

}  // namespace

CastFunction CastFromReal(DataType from, DataType to, bool truncates) {
  const CastFunction truncation = truncates ? FindTruncation(from, to) : nullptr;
  return truncation != nullptr ? truncation : FindCast(RealTypes(), from, to);
}

}  // namespace ferry::worker
