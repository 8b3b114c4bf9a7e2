// SPDX-License-Identifier: Apache-2.0
// The MatMul kernel, by Eigen.
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/shapes.h"

namespace ferry::worker {
namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using ConstMap = Eigen::Map<const Matrix<T>>;

// z = x y, with x or y transposed first if requested. Transposing is cheap compared to the product,
// and Eigen instantiates one product instead of four.
template <typename T>
void Multiply(const ConstMap<T>& x, bool turns_x, const ConstMap<T>& y, bool turns_y,
              Eigen::Map<Matrix<T>> z) {
  Matrix<T> turned_x;
  Matrix<T> turned_y;
  if (turns_x) turned_x = x.transpose();
  if (turns_y) turned_y = y.transpose();
  const auto map = [](const Matrix<T>& turned) {
    return ConstMap<T>(turned.data(), turned.rows(), turned.cols());
  };
  z.noalias() = (turns_x ? map(turned_x) : x) * (turns_y ? map(turned_y) : y);
}

// Reinterprets elements as another type of the same size.
template <typename As>
ConstMap<As> MapOf(const Tensor& tensor) {
  return {static_cast<const As*>(tensor.data()), tensor.shape().dim(0), tensor.shape().dim(1)};
}
template <typename As>
Eigen::Map<Matrix<As>> MapOf(Tensor& tensor) {
  return {static_cast<As*>(tensor.mutable_data()), tensor.shape().dim(0), tensor.shape().dim(1)};
}

template <typename T>
void MultiplyArrays(const Tensor& x, bool turns_x, const Tensor& y, bool turns_y, Tensor& z) {
  if constexpr (kIsSmallFloat<T>) {
    // Accumulates in float and rounds once at the end.
    const Matrix<float> wide_x = MapOf<T>(x).template cast<float>();
    const Matrix<float> wide_y = MapOf<T>(y).template cast<float>();
    Matrix<float> wide_z(z.shape().dim(0), z.shape().dim(1));
    Multiply<float>({wide_x.data(), wide_x.rows(), wide_x.cols()}, turns_x,
                    {wide_y.data(), wide_y.rows(), wide_y.cols()}, turns_y,
                    {wide_z.data(), wide_z.rows(), wide_z.cols()});
    MapOf<T>(z) = wide_z.template cast<T>();
  } else if constexpr (std::is_integral_v<T>) {
    // Unsigned, because signed overflow is undefined.
    using Unsigned = std::make_unsigned_t<T>;
    Multiply<Unsigned>(MapOf<Unsigned>(x), turns_x, MapOf<Unsigned>(y), turns_y,
                       MapOf<Unsigned>(z));
  } else {
    Multiply<T>(MapOf<T>(x), turns_x, MapOf<T>(y), turns_y, MapOf<T>(z));
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
