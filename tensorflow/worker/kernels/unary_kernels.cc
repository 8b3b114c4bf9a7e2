// SPDX-License-Identifier: Apache-2.0
// Neg and Sqrt.
#include <cmath>
#include <complex>

#include "tensorflow/worker/kernels/arithmetic.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"

#include "base/status_macros.h"

namespace ferry::worker {
namespace {

struct Negate {
  template <typename T>
  static void Apply(const T* from, T* to, int64_t count) {
    if constexpr (std::is_integral_v<T>) {
      // Subtracts with wraparound, because the minimum has no negation.
      const T zero = 0;
      BinaryRow<SubElements>(&zero, 0, from, 1, to, count);
    } else {
      Elements<T>(to, count) = -ConstElements<T>(from, count);
    }
  }
};

struct SquareRoot {
  template <typename T>
  static void Apply(const T* from, T* to, int64_t count) {
    if constexpr (kIsSmallFloat<T>) {
      float floats[kFloatPiece];
      ForEachPiece(count, [&floats, from, to](int64_t at, int64_t here) {
        ToFloats(from + at, floats, here);
        Apply(floats, floats, here);
        FromFloats(floats, to + at, here);
      });
    } else {
      // Eigen's own is inexact: an approximation for floats, and different rounding for complex
      // numbers.
      Elements<T>(to, count) =
          ConstElements<T>(from, count).unaryExpr([](const T& x) { return std::sqrt(x); });
    }
  }
};

template <typename Operation, typename T>
absl::Status ComputeUnary(KernelContext& context) {
  const Tensor& x = context.input(0);
  FERRY_ASSIGN_OR_RETURN(Tensor y, context.Allocate(x.dtype(), x.shape()));
  Operation::Apply(static_cast<const T*>(x.data()), static_cast<T*>(y.mutable_data()),
                   x.shape().element_count());
  context.set_output(0, std::move(y));
  return absl::OkStatus();
}

template <typename Operation, typename Types>
std::unique_ptr<Kernel> MakeUnary(Types types, const NodeAttrs& node) {
  std::unique_ptr<Kernel> kernel;
  const bool is_known = WithType(types, node.Type("T"), [&kernel](auto tag) {
    kernel = MakeFunctionKernel(ComputeUnary<Operation, typename decltype(tag)::Type>);
  });
  FERRY_CHECK(is_known);
  return kernel;
}

}  // namespace

KernelOr MakeNeg(const NodeAttrs& node) {
  return MakeUnary<Negate>(RealTypes() + SignedTypes() + ComplexTypes(), node);
}

KernelOr MakeSqrt(const NodeAttrs& node) {
  return MakeUnary<SquareRoot>(RealTypes() + ComplexTypes(), node);
}

}  // namespace ferry::worker
