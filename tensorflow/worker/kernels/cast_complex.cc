// SPDX-License-Identifier: Apache-2.0
// Conversions from complex numbers: a real target gets the real part.
#include "tensorflow/worker/kernels/cast_elements.h"

namespace ferry::worker {
namespace {

CastFunction FindTruncation(DataType from, DataType to) {
  CastFunction function = nullptr;
  if (from == DataType::kComplex64 && to == DataType::kHalf) return TruncateArray<Half, Complex64>;
  if (from == DataType::kComplex128) {
    WithType(TypeSet<Half, float, Complex64>(), to, [&function](auto tag) {
      function = TruncateArray<typename decltype(tag)::Type, Complex128>;
    });
  }
  return function;
}

}  // namespace

CastFunction CastFromComplex(DataType from, DataType to, bool truncates) {
  const CastFunction truncation = truncates ? FindTruncation(from, to) : nullptr;
  return truncation != nullptr ? truncation : FindCast(ComplexTypes(), from, to);
}

}  // namespace ferry::worker
