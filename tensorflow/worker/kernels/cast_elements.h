// SPDX-License-Identifier: Apache-2.0
// Conversion of one element, with TensorFlow's results on this architecture.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_CAST_ELEMENTS_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_CAST_ELEMENTS_H_

#include <bit>
#include <limits>
#include <type_traits>

#include "tensorflow/worker/kernels/cast.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/small_floats.h"

namespace ferry::worker {

using CastTypes = decltype(NumberTypes() + TypeSet<bool>());

// Truncates towards zero; out-of-range values give the minimum, as the x86 instruction does.
// (Undefined behaviour in C++.)
template <typename Integer, typename Real>
Integer Chopped(Real x) {
  constexpr Real kEnd = static_cast<Real>(uint64_t{1} << (sizeof(Integer) * 8 - 1));
  const bool fits = x >= -kEnd && x < kEnd;
  const Integer chopped = static_cast<Integer>(fits ? x : Real(0));
  return fits ? chopped : std::numeric_limits<Integer>::min();
}

// Real is float or double.
template <typename To, typename Real>
To IntegerOf(Real x) {
  if constexpr (std::is_same_v<To, uint64_t>) {
    // Values of 2^63 and above are converted with an offset; the sign of the first attempt shows if
    // so.
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

template <typename To, typename From>
To Converted(From x) {
  if constexpr (kIsComplex<From> && kIsComplex<To>) {
    using Part = typename To::value_type;
    return {static_cast<Part>(x.real()), static_cast<Part>(x.imag())};
  } else if constexpr (kIsComplex<From>) {
    return Converted<To>(x.real());
  } else if constexpr (kIsComplex<To>) {
    return {Converted<typename To::value_type>(x), 0};
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != static_cast<From>(0);
  } else if constexpr (kIsSmallFloat<From>) {
    return Converted<To>(static_cast<float>(x));
  } else if constexpr (kIsSmallFloat<To>) {
    return static_cast<To>(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return IntegerOf<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <typename T>
constexpr int kMantissaBits = std::is_same_v<T, Half>       ? 11
                              : std::is_same_v<T, Bfloat16> ? 8
                                                            : std::numeric_limits<T>::digits;

// Clears the mantissa bits that To lacks.
template <typename To, typename Real>
Real Shortened(Real x) {
  using Bits = std::conditional_t<sizeof(Real) == 8, uint64_t, uint32_t>;
  constexpr Bits kKept = ~Bits{0} << (kMantissaBits<Real> - kMantissaBits<To>);
  const Bits bits = std::bit_cast<Bits>(x);
  // Uses bits, because GCC 12 folds `x == x ? <bits of x> : x` to x.
  const Bits infinity = std::bit_cast<Bits>(std::numeric_limits<Real>::infinity());
  const bool is_number = (bits << 1) <= (infinity << 1);
  return std::bit_cast<Real>(is_number ? bits & kKept : bits);
}

template <typename T>
auto RealPart(T x) {
  if constexpr (kIsComplex<T>) {
    return x.real();
  } else {
    return x;
  }
}

template <typename To, typename From>
To Truncated(From x) {
  if constexpr (kIsComplex<From>) {
    if constexpr (kIsComplex<To>) {
      using Part = typename To::value_type;
      return Converted<To>(From(Shortened<Part>(x.real()), Shortened<Part>(x.imag())));
    } else {
      return Converted<To>(Shortened<To>(x.real()));
    }
  } else if constexpr (kIsComplex<To>) {
    return Converted<To>(Shortened<typename To::value_type>(x));
  } else {
    return Converted<To>(Shortened<To>(x));
  }
}

template <typename To, typename From>
void CastArray(const void* from, void* to, int64_t count) {
  const From* const source = static_cast<const From*>(from);
  To* const target = static_cast<To*>(to);
  if constexpr (kIsSmallFloat<From>) {
    float floats[kFloatPiece];
    ForEachPiece(count, [&floats, source, target](int64_t at, int64_t here) {
      ToFloats(source + at, floats, here);
      CastArray<To, float>(floats, target + at, here);
    });
  } else if constexpr (kIsSmallFloat<To>) {
    float floats[kFloatPiece];
    ForEachPiece(count, [&floats, source, target](int64_t at, int64_t here) {
      CastArray<float, From>(source + at, floats, here);
      FromFloats(floats, target + at, here);
    });
  } else {
    Elements<To>(target, count) = ConstElements<From>(source, count).unaryExpr([](const From& x) {
      return Converted<To>(x);
    });
  }
}

template <typename To, typename From>
void TruncateArray(const void* from, void* to, int64_t count) {
  const From* const source = static_cast<const From*>(from);
  To* const target = static_cast<To*>(to);
  if constexpr (kIsSmallFloat<To>) {
    float floats[kFloatPiece];
    ForEachPiece(count, [&floats, source, target](int64_t at, int64_t here) {
      Elements<float>(floats, here) =
          ConstElements<From>(source + at, here).unaryExpr([](const From& x) {
            return Converted<float>(Shortened<To>(RealPart(x)));
          });
      FromFloats(floats, target + at, here);
    });
  } else {
    Elements<To>(target, count) = ConstElements<From>(source, count).unaryExpr([](const From& x) {
      return Truncated<To>(x);
    });
  }
}

template <typename Types>
CastFunction FindCast(Types types, DataType from, DataType to) {
  CastFunction function = nullptr;
  WithType(types, from, [to, &function](auto from_tag) {
    WithType(CastTypes(), to, [&function](auto to_tag) {
      function = CastArray<typename decltype(to_tag)::Type, typename decltype(from_tag)::Type>;
    });
  });
  return function;
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_CAST_ELEMENTS_H_
