// SPDX-License-Identifier: Apache-2.0
// Element-wise binary operations with TensorFlow's results, as Eigen expressions.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_ARITHMETIC_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_ARITHMETIC_H_

#include <type_traits>

#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/small_floats.h"

namespace ferry::worker {

// Each has a static Of, which builds an expression from two. REQUIRES: no small floats, which are
// computed as floats; and, if kOverflows, no signed integers.
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
      // The plain formula without the C++ standard's recovery of infinities; Eigen uses the latter
      // for elements that do not fill a vector register.
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
      // Eigen's division of complex numbers rounds differently.
      return x.binaryExpr(y, [](const T& a, const T& b) { return a / b; });
    } else {
      return x / y;
    }
  }
};

// NaN wins, and the first of two equal numbers: Eigen's own returns the other zero.
struct MaxElements {
  static constexpr bool kOverflows = false;
  template <typename X, typename Y>
  static auto Of(const X& x, const Y& y) {
    using T = typename X::Scalar;
    if constexpr (kIsFloat<T>) {
      // A single select: the compiler cannot vectorise several.
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

// out = Operation(x, y), where a stride is 1, or 0 for one repeated element. `out` may alias x or
// y. Small floats are converted to float, block by block, and rounded to nearest, ties to even;
// integers wrap around.
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
        // Narrower types would be promoted to signed int.
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
