// SPDX-License-Identifier: Apache-2.0
// What two arrays of one type make, as TensorFlow has it: expressions of Eigen's.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_ARITHMETIC_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_ARITHMETIC_H_

#include <type_traits>

#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/small_floats.h"

namespace ferry::worker {

// Each has an Of, which makes an expression of two. REQUIRES: not of small floats, which are
// computed as floats, nor of integers of a sign, which may overflow, if kOverflows.
struct AddElements {
  static constexpr bool kOverflows = true;
  template <typename X, typename Y>
  static auto Of(const X& x, const Y& y) {
    return x + y;
  }
};

struct SubElements {
  static constexpr bool kOverflows = true;
  template <typename X, typename Y>
  static auto Of(const X& x, const Y& y) {
    return x - y;
  }
};

struct MulElements {
  static constexpr bool kOverflows = true;
  template <typename X, typename Y>
  static auto Of(const X& x, const Y& y) {
    using T = typename X::Scalar;
    if constexpr (kIsComplex<T>) {
      // Without the standard's repair of infinities, which Eigen makes for those that fill no
      // register.
      return x.binaryExpr(y, [](const T& a, const T& b) {
        return T(a.real() * b.real() - a.imag() * b.imag(),
                 a.real() * b.imag() + a.imag() * b.real());
      });
    } else {
      return x * y;
    }
  }
};

struct DivElements {
  static constexpr bool kOverflows = false;
  template <typename X, typename Y>
  static auto Of(const X& x, const Y& y) {
    using T = typename X::Scalar;
    if constexpr (kIsComplex<T>) {
      // Eigen's own division of complex numbers rounds in another way.
      return x.binaryExpr(y, [](const T& a, const T& b) { return a / b; });
    } else {
      return x / y;
    }
  }
};

// What is no number wins, and the first of two that are equal: Eigen's own takes the other zero.
struct MaxElements {
  static constexpr bool kOverflows = false;
  template <typename X, typename Y>
  static auto Of(const X& x, const Y& y) {
    using T = typename X::Scalar;
    if constexpr (kIsFloat<T>) {
      // One choice for the compiler, which has no vectors for several.
      return x.binaryExpr(y,
                          [](T a, T b) { return static_cast<bool>((a != a) | (a >= b)) ? a : b; });
    } else {
      return x.max(y);
    }
  }
};

struct MinElements {
  static constexpr bool kOverflows = false;
  template <typename X, typename Y>
  static auto Of(const X& x, const Y& y) {
    using T = typename X::Scalar;
    if constexpr (kIsFloat<T>) {
      return x.binaryExpr(y,
                          [](T a, T b) { return static_cast<bool>((a != a) | (a <= b)) ? a : b; });
    } else {
      return x.min(y);
    }
  }
};

// out = Operation(x, y), where a stride is 1, or 0 for one element that is repeated. `out` may be x
// or y. Small floats become floats, piece by piece, and are rounded to the nearest, to even if it
// is halfway; integers wrap round.
template <typename Operation, typename T>
void BinaryRow(const T* x, int64_t x_stride, const T* y, int64_t y_stride, T* out, int64_t count) {
  if constexpr (kIsSmallFloat<T>) {
    float x_floats[kFloatPiece];
    float y_floats[kFloatPiece];
    ForEachPiece(count, [&](int64_t at, int64_t here) {
      ToFloats(x + at * x_stride, x_floats, x_stride == 0 ? 1 : here);
      ToFloats(y + at * y_stride, y_floats, y_stride == 0 ? 1 : here);
      float* const out_floats = x_stride == 0 ? y_floats : x_floats;
      BinaryRow<Operation>(x_floats, x_stride, y_floats, y_stride, out_floats, here);
      FromFloats(out_floats, out + at, here);
    });
  } else if constexpr (std::is_signed_v<T> && std::is_integral_v<T> && Operation::kOverflows) {
    using Unsigned = std::make_unsigned_t<T>;
    BinaryRow<Operation>(reinterpret_cast<const Unsigned*>(x), x_stride,
                         reinterpret_cast<const Unsigned*>(y), y_stride,
                         reinterpret_cast<Unsigned*>(out), count);
  } else {
    const auto assign = [out, count](const auto& left, const auto& right) {
      Elements<T> to(out, count);
      if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(unsigned) &&
                    Operation::kOverflows) {
        // Smaller ones would become int, of a sign.
        to = Operation::Of(left.template cast<unsigned>(), right.template cast<unsigned>())
                 .template cast<T>();
      } else {
        to = Operation::Of(left, right);
      }
    };
    if (x_stride == 0) {
      assign(Repeated<T>(*x, count), ConstElements<T>(y, count));
    } else if (y_stride == 0) {
      assign(ConstElements<T>(x, count), Repeated<T>(*y, count));
    } else {
      assign(ConstElements<T>(x, count), ConstElements<T>(y, count));
    }
  }
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_ARITHMETIC_H_
