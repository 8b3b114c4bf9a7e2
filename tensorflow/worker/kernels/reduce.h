// SPDX-License-Identifier: Apache-2.0
// Kernels that reduce elements along dimensions.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_REDUCE_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_REDUCE_H_

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "tensorflow/worker/kernels/element_types.h"
#include "tensorflow/worker/kernels/families.h"
#include "tensorflow/worker/kernels/function_kernel.h"
#include "tensorflow/worker/kernels/reduction.h"

namespace ferry::worker {

// An Operation for elements of type T has
//   Total                                  the accumulator type
//   Total First()                          the identity
//   void Add(Total*, const T*, int64_t)    adds a row of elements, each to its own total
//   Total Of(const T*, int64_t)            reduces a row of at least one element
//   Total Merge(Total, Total)              combines two totals
//   T Result(Total, int64_t)               the result for that many elements, at least one
//   T OfNone()                             the result for no elements
template <typename Operation, typename T>
absl::Status ComputeReduction(KernelContext& context, bool keeps_dims) {
  using Total = typename Operation::Total;
  const Tensor& input = context.input(0);
  FERRY_ASSIGN_OR_RETURN(const Reduction reduction,
                         ReductionOf(input.shape(), context.input(1), keeps_dims));
  if (reduction.is_identity()) {
    FERRY_ASSIGN_OR_RETURN(Tensor same, input.Reshape(reduction.shape));
    context.set_output(0, std::move(same));
    return absl::OkStatus();
  }
  FERRY_ASSIGN_OR_RETURN(Tensor output, context.Allocate(input.dtype(), reduction.shape));
  const int64_t out_count = reduction.shape.element_count();
  const T* const from = static_cast<const T*>(input.data());
  T* const to = static_cast<T*>(output.mutable_data());
  if (input.shape().element_count() == 0) {
    std::fill_n(to, out_count, Operation::OfNone());
  } else {
    FERRY_RETURN_IF_ERROR(context.CheckBytes(static_cast<size_t>(out_count) * sizeof(Total)));
    const std::unique_ptr<Total[]> totals(new Total[static_cast<size_t>(out_count)]);
    std::fill_n(totals.get(), out_count, Operation::First());
    ForEachRow(reduction,
               [from, all = totals.get()](int64_t out, int64_t in, int64_t count, bool is_reduced) {
                 const T* const row = from + in;
                 if (is_reduced) {
                   all[out] = Operation::Merge(all[out], Operation::Of(row, count));
                 } else {
                   Operation::Add(all + out, row, count);
                 }
               });
    for (int64_t i = 0; i < out_count; ++i) {
      to[i] = Operation::Result(totals[static_cast<size_t>(i)], reduction.reduced_count);
    }
  }
  context.set_output(0, std::move(output));
  return absl::OkStatus();
}

// Instantiates for the type of the set that is the node's T. REQUIRES: it is in the set.
template <template <typename> typename Operation, typename Types>
std::unique_ptr<Kernel> MakeReduction(Types types, const NodeAttrs& node) {
  std::unique_ptr<Kernel> kernel;
  const bool keeps_dims = node.Bool("keep_dims");
  const bool is_known = WithType(types, node.Type("T"), [keeps_dims, &kernel](auto tag) {
    using T = typename decltype(tag)::Type;
    kernel = MakeFunctionKernel([keeps_dims](KernelContext& context) {
      return ComputeReduction<Operation<T>, T>(context, keeps_dims);
    });
  });
  FERRY_CHECK(is_known);
  return kernel;
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_REDUCE_H_
