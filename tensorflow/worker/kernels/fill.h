// SPDX-License-Identifier: Apache-2.0
// Constants and Fill: parts shared by host and GPU kernels.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_FILL_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_FILL_H_

#include "absl/status/statusor.h"

#include "tensor/shape.h"
#include "tensor/tensor.h"
#include "tensorflow/worker/kernels/node_attrs.h"

namespace ferry::worker {

// Returns the value of a Const, in host memory.
//   Errors: INVALID_ARGUMENT for a value that cannot be decoded, or is of another type.
absl::StatusOr<Tensor> ConstantOf(const NodeAttrs& node);

// Returns the output shape of Fill. Reads only the shape of `value`.
//   dims: in host memory.
//   Errors: INVALID_ARGUMENT with TensorFlow's texts.
absl::StatusOr<Shape> FillShape(const Tensor& dims, const Tensor& value);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_FILL_H_
