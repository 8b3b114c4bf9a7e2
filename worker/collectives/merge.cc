// SPDX-License-Identifier: Apache-2.0
// Plain loops, which the compiler turns into vectors.
#include "worker/collectives/merge.h"

#include "base/status_macros.h"
#include "worker/kernels/arithmetic.h"
#include "worker/kernels/element_types.h"
#include "worker/kernels/small_floats.h"

namespace ferry::worker {
namespace {

using MergedTypes = TypeSet<Bfloat16, Half, float, double, int32_t, int64_t>;

template <typename Operation, typename T>
void MergeLoop(const T* a, const T* b, T* out, int64_t count) {
  if constexpr (kIsSmallFloat<T>) {
    float a_floats[kFloatPiece];
    float b_floats[kFloatPiece];
    ForEachPiece(count, [&](int64_t at, int64_t here) {
      ToFloats(a + at, a_floats, here);
      ToFloats(b + at, b_floats, here);
      MergeLoop<Operation>(a_floats, b_floats, a_floats, here);
      FromFloats(a_floats, out + at, here);
    });
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = Operation::Apply(a[i], b[i]);
  }
}

template <typename T>
void MergeElements(MergeOp op, const T* a, const T* b, T* out, int64_t count) {
  switch (op) {
    case MergeOp::kAdd:
      return MergeLoop<AddElements>(a, b, out, count);
    case MergeOp::kMul:
      return MergeLoop<MulElements>(a, b, out, count);
    case MergeOp::kMax:
      return MergeLoop<MaxElements>(a, b, out, count);
    case MergeOp::kMin:
      return MergeLoop<MinElements>(a, b, out, count);
  }
}

template <typename T>
void DivideElements(int32_t divisor, T* elements, int64_t count) {
  if constexpr (kIsSmallFloat<T>) {
    for (int64_t i = 0; i < count; ++i) {
      elements[i] = static_cast<T>(static_cast<float>(elements[i]) /
                                   static_cast<float>(static_cast<T>(static_cast<float>(divisor))));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) elements[i] /= static_cast<T>(divisor);
  }
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
