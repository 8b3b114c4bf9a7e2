// SPDX-License-Identifier: Apache-2.0
// MatMul, by Eigen.
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "worker/kernels/element_types.h"
#include "worker/kernels/families.h"
#include "worker/kernels/function_kernel.h"
#include "worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using ConstMap = Eigen::Map<const Matrix<T>>;

// z = x y, of x and y or of what they are turned round.
template <typename X, typename Y, typename Z>
void Multiply(const X& x, bool turns_x, const Y& y, bool turns_y, Z& z) {
  if (turns_x && turns_y) {
    z.noalias() = x.transpose() * y.transpose();
  } else if (turns_x) {
    z.noalias() = x.transpose() * y;
  } else if (turns_y) {
    z.noalias() = x * y.transpose();
  } else {
    z.noalias() = x * y;
  }
}

template <typename T>
void MultiplyArrays(const Tensor& x, bool turns_x, const Tensor& y, bool turns_y, Tensor& z) {
  const ConstMap<T> x_map(static_cast<const T*>(x.data()), x.shape().dim(0), x.shape().dim(1));
  const ConstMap<T> y_map(static_cast<const T*>(y.data()), y.shape().dim(0), y.shape().dim(1));
  Eigen::Map<Matrix<T>> z_map(static_cast<T*>(z.mutable_data()), z.shape().dim(0),
                              z.shape().dim(1));
  if constexpr (kIsSmallFloat<T>) {
    // Sums as floats, rounded once at the end.
    const Matrix<float> wide_x = x_map.template cast<float>();
    const Matrix<float> wide_y = y_map.template cast<float>();
    Matrix<float> wide_z(z_map.rows(), z_map.cols());
    Multiply(wide_x, turns_x, wide_y, turns_y, wide_z);
    z_map = wide_z.template cast<T>();
  } else if constexpr (std::is_integral_v<T>) {
    // As unsigned numbers, which may overflow.
    using Unsigned = std::make_unsigned_t<T>;
    const ConstMap<Unsigned> plain_x(reinterpret_cast<const Unsigned*>(x_map.data()), x_map.rows(),
                                     x_map.cols());
    const ConstMap<Unsigned> plain_y(reinterpret_cast<const Unsigned*>(y_map.data()), y_map.rows(),
                                     y_map.cols());
    Eigen::Map<Matrix<Unsigned>> plain_z(reinterpret_cast<Unsigned*>(z_map.data()), z_map.rows(),
                                         z_map.cols());
    Multiply(plain_x, turns_x, plain_y, turns_y, plain_z);
  } else {
    Multiply(x_map, turns_x, y_map, turns_y, z_map);
  }
}

template <typename T>
absl::Status MatMul(KernelContext& context, bool turns_x, bool turns_y) {
  const Tensor& x = context.input(0);
  const Tensor& y = context.input(1);
  if (x.shape().rank() != y.shape().rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("In[0] and In[1] has different ndims: ", ShapeText(x.shape()), " vs. ",
                     ShapeText(y.shape())));
  }
  for (int i = 0; i < 2; ++i) {
    const Shape& shape = context.input(i).shape();
    if (shape.rank() == 2) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("In[", i, "] is not a matrix. Instead it has shape ", ShapeText(shape)));
  }
  const int64_t inner = x.shape().dim(turns_x ? 0 : 1);
  if (inner != y.shape().dim(turns_y ? 1 : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Matrix size-incompatible: In[0]: ", ShapeText(x.shape()),
                     ", In[1]: ", ShapeText(y.shape())));
  }
  FERRY_ASSIGN_OR_RETURN(const Shape shape,
                         ShapeOf({x.shape().dim(turns_x ? 1 : 0), y.shape().dim(turns_y ? 0 : 1)}));
  FERRY_ASSIGN_OR_RETURN(Tensor z, context.Allocate(x.dtype(), shape));
  if (inner == 0) {
    if (z.bytes() > 0) std::memset(z.mutable_data(), 0, z.bytes());
  } else if (z.bytes() > 0) {
    MultiplyArrays<T>(x, turns_x, y, turns_y, z);
  }
  context.set_output(0, std::move(z));
  return absl::OkStatus();
}

}  // namespace

KernelOr MakeMatMul(const NodeAttrs& node) {
  const bool turns_x = node.Bool("transpose_a");
  const bool turns_y = node.Bool("transpose_b");
  std::unique_ptr<Kernel> kernel;
  const bool is_known =
      WithType(RealTypes() + ComplexTypes() + TypeSet<int32_t, int64_t>(), node.Type("T"),
               [turns_x, turns_y, &kernel](auto tag) {
                 using T = typename decltype(tag)::Type;
                 kernel = MakeFunctionKernel([turns_x, turns_y](KernelContext& context) {
                   return MatMul<T>(context, turns_x, turns_y);
                 });
               });
  FERRY_CHECK(is_known);
  return kernel;
}

}  // namespace ferry::worker
