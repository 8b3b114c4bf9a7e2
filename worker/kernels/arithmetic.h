// SPDX-License-Identifier: Apache-2.0
// What two elements of one type make, as TensorFlow has it.
#ifndef FERRY_WORKER_KERNELS_ARITHMETIC_H_
#define FERRY_WORKER_KERNELS_ARITHMETIC_H_

#include <type_traits>

#include "worker/kernels/element_types.h"

namespace ferry::worker {

// Integers wrap round; small floats are computed as floats and rounded to the nearest, to even if
// it is halfway.
template <typename T, typename Function>
T Arithmetic(T x, T y, Function function) {
  if constexpr (kIsSmallFloat<T>) {
    return static_cast<T>(function(static_cast<float>(x), static_cast<float>(y)));
  } else if constexpr (std::is_integral_v<T>) {
    // Not narrower than int, which smaller ones would become, signed.
    using Wide =
        std::conditional_t<sizeof(T) < sizeof(unsigned), unsigned, std::make_unsigned_t<T>>;
    return static_cast<T>(function(static_cast<Wide>(x), static_cast<Wide>(y)));
  } else {
    return function(x, y);
  }
}

struct AddElements {
  template <typename T>
  static T Apply(T x, T y) {
    return Arithmetic(x, y, [](auto a, auto b) { return a + b; });
  }
};

struct SubElements {
  template <typename T>
  static T Apply(T x, T y) {
    return Arithmetic(x, y, [](auto a, auto b) { return a - b; });
  }
};

struct MulElements {
  template <typename T>
  static T Apply(T x, T y) {
    if constexpr (kIsComplex<T>) {
      // Without the standard's repair of infinities.
      return {x.real() * y.real() - x.imag() * y.imag(), x.real() * y.imag() + x.imag() * y.real()};
    } else {
      return Arithmetic(x, y, [](auto a, auto b) { return a * b; });
    }
  }
};

struct DivElements {
  template <typename T>
  static T Apply(T x, T y) {
    return Arithmetic(x, y, [](auto a, auto b) { return a / b; });
  }
};

// What is no number wins.
struct MaxElements {
  template <typename T>
  static T Apply(T x, T y) {
    // One choice for the compiler, which has no vectors for several.
    if constexpr (kIsFloat<T>) return static_cast<bool>((x != x) | (x >= y)) ? x : y;
    return x < y ? y : x;
  }
};

struct MinElements {
  template <typename T>
  static T Apply(T x, T y) {
    if constexpr (kIsFloat<T>) return static_cast<bool>((x != x) | (x <= y)) ? x : y;
    return y < x ? y : x;
  }
};

}  // namespace ferry::worker

#endif  // FERRY_WORKER_KERNELS_ARITHMETIC_H_
