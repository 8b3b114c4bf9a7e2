// SPDX-License-Identifier: Apache-2.0
// Neg and Sqrt.
#include <cmath>
#include <complex>

#include "worker/kernels/arithmetic.h"
#include "worker/kernels/element_types.h"
#include "worker/kernels/families.h"
#include "worker/kernels/function_kernel.h"

#include "base/status_macros.h"

namespace ferry::worker {
namespace {

struct Negate {
  template <typename T>
  static T Apply(T x) {
    if constexpr (std::is_integral_v<T>) {
      return SubElements::Apply(T(0), x);
    } else {
      return -x;
    }
  }
};

struct SquareRoot {
  template <typename T>
  static T Apply(T x) {
    if constexpr (kIsSmallFloat<T>) {
      return static_cast<T>(std::sqrt(static_cast<float>(x)));
    } else {
      return std::sqrt(x);
    }
  }
};

template <typename Operation, typename T>
absl::Status ComputeUnary(KernelContext& context) {
  const Tensor& x = context.input(0);
  FERRY_ASSIGN_OR_RETURN(Tensor y, context.Allocate(x.dtype(), x.shape()));
  const T* const from = static_cast<const T*>(x.data());
  T* const to = static_cast<T*>(y.mutable_data());
  const int64_t count = x.shape().element_count();
  for (int64_t i = 0; i < count; ++i) to[i] = Operation::Apply(from[i]);
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
