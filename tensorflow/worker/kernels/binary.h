// SPDX-License-Identifier: Apache-2.0
// Element-wise binary kernels with broadcasting.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_BINARY_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_BINARY_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/arithmetic.h"
#include "tensorflow/worker/kernels/broadcast.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"

namespace ferry::worker {

template <typename Operation, typename T>
absl::Status ComputeBinary(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& y = context.input(1);
  FERRY_ASSIGN_OR_RETURN(const Broadcast broadcast, BroadcastOf(x.shape(), y.shape()));
  FERRY_ASSIGN_OR_RETURN(Tensor out, context.Allocate(x.dtype(), broadcast.shape));
  if (broadcast.shape.element_count() > 0) {
    const T* const x_elements = static_cast<const T*>(x.data());
    const T* const y_elements = static_cast<const T*>(y.data());
    T* const out_elements = static_cast<T*>(out.mutable_data());
    const int64_t x_stride = broadcast.x_strides.back();
    const int64_t y_stride = broadcast.y_strides.back();
    ForEachRow(broadcast, [x_elements, y_elements, out_elements, x_stride, y_stride](
                              int64_t x_at, int64_t y_at, int64_t out_at, int64_t count) {
      BinaryRow<Operation>(x_elements + x_at, x_stride, y_elements + y_at, y_stride,
                           out_elements + out_at, count);
    });
  }
  context.set_output(0, std::move(out));
  return absl::OkStatus();
}

// Instantiates for the type of the set that is the node's T. REQUIRES: it is in the set.
template <typename Operation, typename Types>
std::unique_ptr<Kernel> MakeBinary(Types types, const NodeAttrs& node) {
  std::unique_ptr<Kernel> kernel;
  const bool is_known = WithType(types, node.Type("T"), [&kernel](auto tag) {
    kernel = MakeFunctionKernel(ComputeBinary<Operation, typename decltype(tag)::Type>);
  });
  FERRY_CHECK(is_known);
  return kernel;
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_BINARY_H_
