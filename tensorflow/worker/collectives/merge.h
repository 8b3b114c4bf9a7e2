// SPDX-License-Identifier: Apache-2.0
// Element-wise operations of reductions.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_MERGE_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_MERGE_H_

#include "tensor/tensor.h"
#include "tensorflow/worker/collectives/collective_node.h"

namespace ferry::worker {

// True if the type can be reduced: half, bfloat16, float, double, int32, int64.
bool CanMerge(DataType dtype);

// Element-wise out = op(a, b); `out` may alias `a` or `b`. Same results as TensorFlow's Add, Mul,
// Maximum and Minimum. REQUIRES: CanMerge; equal types and element counts; host memory.
void Merge(MergeOp op, const Tensor& a, const Tensor& b, Tensor& out);
// Divides every element by a positive number; integers truncate towards 0.
void DivideBy(int32_t divisor, Tensor& tensor);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_MERGE_H_
