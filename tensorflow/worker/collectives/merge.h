// SPDX-License-Identifier: Apache-2.0
// What reductions do with elements.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_MERGE_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_MERGE_H_

#include "tensor/tensor.h"
#include "tensorflow/worker/collectives/collective_node.h"

namespace ferry::worker {

// Whether the type can be merged: half, bfloat16, float, double, int32, int64.
bool CanMerge(DataType dtype);

// Element by element, into `out`, which may be one of the others. As TensorFlow's Add, Mul, Maximum
// and Minimum. REQUIRES: CanMerge; the same type and element count; on the host.
void Merge(MergeOp op, const Tensor& a, const Tensor& b, Tensor& out);
// Every element by a positive number; integers towards 0.
void DivideBy(int32_t divisor, Tensor& tensor);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_MERGE_H_
