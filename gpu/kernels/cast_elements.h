// SPDX-License-Identifier: Apache-2.0
// Element-wise conversions for GPUs and the host alike (elements.h). They give the same results as
// the worker's kernels for CPUs (tensorflow/worker/kernels/cast_elements.h), also where C++ leaves
// the result undefined.
#ifndef FERRY_GPU_KERNELS_CAST_ELEMENTS_H_
#define FERRY_GPU_KERNELS_CAST_ELEMENTS_H_

#include <cstdint>
#include <type_traits>

#include "gpu/kernels/elements.h"

namespace ferry::cuda {

// Truncates towards zero; values out of range become the smallest number.
template <typename Integer, typename Real>
FERRY_BOTH Integer Chopped(Real x) {
  constexpr Integer kLowest = static_cast<Integer>(uint64_t{1} << (sizeof(Integer) * 8 - 1));
  constexpr Real kEnd = static_cast<Real>(uint64_t{1} << (sizeof(Integer) * 8 - 1));
  const bool fits = x >= -kEnd && x < kEnd;
  const Integer chopped = static_cast<Integer>(fits ? x : Real(0));
  return fits ? chopped : kLowest;
}

template <typename To, typename Real>
FERRY_BOTH To IntegerOf(Real x) {
  if constexpr (std::is_same_v<To, uint64_t>) {
    // The upper half is reached by a shift; the sign of the first conversion tells whether it is
    // needed.
    constexpr Real kHalf = static_cast<Real>(uint64_t{1} << 63);
    const int64_t lower = Chopped<int64_t>(x);
    const int64_t upper = Chopped<int64_t>(x - kHalf);
    return static_cast<uint64_t>(lower < 0 ? lower | upper : lower);
  } else if constexpr (std::is_same_v<To, uint32_t>) {
    return static_cast<uint32_t>(Chopped<int64_t>(x));
  } else if constexpr (sizeof(To) < sizeof(int32_t)) {
    return static_cast<To>(Chopped<int32_t>(x));
  } else {
    return Chopped<To>(x);
  }
}

template <typename T>
inline constexpr bool kIsSmall = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <typename To, typename From>
FERRY_BOTH To Converted(From x) {
  if constexpr (kIsSmall<From>) {
    return Converted<To>(ToFloat(x));
  } else if constexpr (std::is_same_v<To, Float16>) {
    return ToFloat16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return ToBrain16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != static_cast<From>(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return IntegerOf<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// Clears the mantissa bits that To does not have.
template <typename To>
FERRY_BOTH float Shortened(float x) {
  constexpr uint32_t kKept = 0xffffffffu << (std::is_same_v<To, Float16> ? 13 : 16);
  const uint32_t bits = BitsAs<uint32_t>(x);
  return (bits & 0x7fffffffu) <= 0x7f800000u ? BitsAs<float>(bits & kKept) : x;
}
template <typename To>
FERRY_BOTH double Shortened(double x) {
  constexpr uint64_t kKept = ~uint64_t{0} << (std::is_same_v<To, Float16> ? 42 : 29);
  constexpr uint64_t kInfinity = uint64_t{0x7ff} << 52;
  const uint64_t bits = BitsAs<uint64_t>(x);
  return (bits << 1) <= (kInfinity << 1) ? BitsAs<double>(bits & kKept) : x;
}

// The conversions that TensorFlow truncates: others are rounded whatever is requested.
template <typename To, typename From>
inline constexpr bool kCanTruncate = (std::is_same_v<From, float> && kIsSmall<To>) ||
                                     (std::is_same_v<From, double> &&
                                      (std::is_same_v<To, Float16> || std::is_same_v<To, float>));

// Booleans in GPU memory have not been checked: any value other than 0 is true.
template <typename T>
FERRY_BOTH T ElementAt(const T* elements, uint64_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return reinterpret_cast<const uint8_t*>(elements)[i] != 0;
  } else {
    return elements[i];
  }
}

template <typename To, typename From>
FERRY_BOTH void CastLoop(const CastCall& call, uint64_t first, uint64_t step) {
  const From* const x = static_cast<const From*>(call.x);
  To* const out = static_cast<To*>(call.out);
  if constexpr (kCanTruncate<To, From>) {
    if (call.truncates != 0) {
      FERRY_ROLLED
      for (uint64_t i = first; i < call.count; i += step) {
        out[i] = Converted<To>(Shortened<To>(x[i]));
      }
      return;
    }
  }
  FERRY_ROLLED
  for (uint64_t i = first; i < call.count; i += step) out[i] = Converted<To>(ElementAt(x, i));
}

template <typename From>
FERRY_BOTH void CastFrom(const CastCall& call, uint64_t first, uint64_t step) {
  switch (call.to) {
    case ElementType::kFloat:
      return CastLoop<float, From>(call, first, step);
    case ElementType::kDouble:
      return CastLoop<double, From>(call, first, step);
    case ElementType::kInt32:
      return CastLoop<int32_t, From>(call, first, step);
    case ElementType::kUint8:
      return CastLoop<uint8_t, From>(call, first, step);
    case ElementType::kInt16:
      return CastLoop<int16_t, From>(call, first, step);
    case ElementType::kInt8:
      return CastLoop<int8_t, From>(call, first, step);
    case ElementType::kInt64:
      return CastLoop<int64_t, From>(call, first, step);
    case ElementType::kBool:
      return CastLoop<bool, From>(call, first, step);
    case ElementType::kBfloat16:
      return CastLoop<BFloat16, From>(call, first, step);
    case ElementType::kUint16:
      return CastLoop<uint16_t, From>(call, first, step);
    case ElementType::kHalf:
      return CastLoop<Float16, From>(call, first, step);
    case ElementType::kUint32:
      return CastLoop<uint32_t, From>(call, first, step);
    case ElementType::kUint64:
      return CastLoop<uint64_t, From>(call, first, step);
  }
}

FERRY_BOTH void RunCast(const CastCall& call, uint64_t first, uint64_t step) {
  switch (call.from) {
    case ElementType::kFloat:
      return CastFrom<float>(call, first, step);
    case ElementType::kDouble:
      return CastFrom<double>(call, first, step);
    case ElementType::kInt32:
      return CastFrom<int32_t>(call, first, step);
    case ElementType::kUint8:
      return CastFrom<uint8_t>(call, first, step);
    case ElementType::kInt16:
      return CastFrom<int16_t>(call, first, step);
    case ElementType::kInt8:
      return CastFrom<int8_t>(call, first, step);
    case ElementType::kInt64:
      return CastFrom<int64_t>(call, first, step);
    case ElementType::kBool:
      return CastFrom<bool>(call, first, step);
    case ElementType::kBfloat16:
      return CastFrom<BFloat16>(call, first, step);
    case ElementType::kUint16:
      return CastFrom<uint16_t>(call, first, step);
    case ElementType::kHalf:
      return CastFrom<Float16>(call, first, step);
    case ElementType::kUint32:
      return CastFrom<uint32_t>(call, first, step);
    case ElementType::kUint64:
      return CastFrom<uint64_t>(call, first, step);
  }
}

}  // namespace ferry::cuda

#endif  // FERRY_GPU_KERNELS_CAST_ELEMENTS_H_
