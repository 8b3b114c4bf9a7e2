// SPDX-License-Identifier: Apache-2.0
// Shapes stored in tensors, and TensorFlow's formatting of shapes in errors.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_SHAPES_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/tf_tensor.pb.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

namespace ferry::worker {

// "[2,?]"; "<unknown>" for an unknown rank.
std::string PartialShapeText(const tensorflow::TensorShapeProto& shape);

// Checks a shape attribute, in which -1 stands for an unknown dimension.
//   Errors: INVALID_ARGUMENT with TensorFlow's texts.
// Source: tensorflow/core/framework/tensor_shape.cc, IsValidShape.
absl::Status CheckPartialShape(const tensorflow::TensorShapeProto& shape);

// Formats all dimensions: "[2,3]".
std::string ShapeText(const Shape& shape);

// Returns the elements of an int32 or int64 tensor. REQUIRES: it has one of these types.
std::vector<int64_t> IntsOf(const Tensor& tensor);

// Converts dimensions requested by a client to a shape.
//   Errors: INVALID_ARGUMENT with TensorFlow's texts.
absl::StatusOr<Shape> ShapeOf(absl::Span<const int64_t> dims);

inline bool IsScalar(const Tensor& tensor) { return tensor.shape().rank() == 0; }
inline bool IsVector(const Tensor& tensor) { return tensor.shape().rank() == 1; }

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_SHAPES_H_
