// SPDX-License-Identifier: Apache-2.0
// What making values has in common on the host and on GPUs.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_FILL_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_FILL_H_

#include "absl/status/statusor.h"

#include "tensor/shape.h"
#include "tensor/tensor.h"
#include "tensorflow/worker/kernels/node_attrs.h"

namespace ferry::worker {

// The value of a Const, in the host's memory.
//   Errors: INVALID_ARGUMENT for one that cannot be decoded, or is of another type.
absl::StatusOr<Tensor> ConstantOf(const NodeAttrs& node);

// The shape that Fill is to fill. Only the shape of `value` is looked at.
//   dims: in the host's memory.
//   Errors: INVALID_ARGUMENT with TensorFlow's texts.
absl::StatusOr<Shape> FillShape(const Tensor& dims, const Tensor& value);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_FILL_H_
