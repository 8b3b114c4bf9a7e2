// SPDX-License-Identifier: Apache-2.0
// Maps each reduction to an Eigen expression.
#include "tensorflow/worker/collectives/merge.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/arithmetic.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/small_floats.h"

namespace ferry::worker {
namespace {

using MergedTypes = TypeSet<Bfloat16, Half, float, double, int32_t, int64_t>;

template <typename T>
void MergeElements(MergeOp op, const T* a, const T* b, T* out, int64_t count) {
  switch (op) {
    case MergeOp::kAdd:
      return BinaryRow<AddElements>(a, 1, b, 1, out, count);
    case MergeOp::kMul:
      return BinaryRow<MulElements>(a, 1, b, 1, out, count);
    case MergeOp::kMax:
      return BinaryRow<MaxElements>(a, 1, b, 1, out, count);
    case MergeOp::kMin:
      return BinaryRow<MinElements>(a, 1, b, 1, out, count);
  }
}

template <typename T>
void DivideElements(int32_t divisor, T* elements, int64_t count) {
  const T by = static_cast<T>(divisor);
  BinaryRow<DivElements>(elements, 1, &by, 0, elements, count);
}

}  // namespace

bool CanMerge(DataType dtype) {
  return WithType(MergedTypes(), dtype, [](auto) {});
}

void Merge(MergeOp op, const Tensor& a, const Tensor& b, Tensor& out) {
  const int64_t count = out.shape().element_count();
  const bool is_known = WithType(MergedTypes(), out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    MergeElements(op, static_cast<const T*>(a.data()), static_cast<const T*>(b.data()),
                  static_cast<T*>(out.mutable_data()), count);
  });
  FERRY_CHECK(is_known);
}

void DivideBy(int32_t divisor, Tensor& tensor) {
  const int64_t count = tensor.shape().element_count();
  const bool is_known = WithType(MergedTypes(), tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    DivideElements(divisor, static_cast<T*>(tensor.mutable_data()), count);
  });
  FERRY_CHECK(is_known);
}

}  // namespace ferry::worker
