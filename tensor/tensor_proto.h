// SPDX-License-Identifier: Apache-2.0
// Tensors to and from tensorflow.TensorProto.
#ifndef FERRY_TENSOR_TENSOR_PROTO_H_
#define FERRY_TENSOR_TENSOR_PROTO_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/tf_tensor.pb.h"
#include "tensor/tensor.h"

namespace ferry {

// A message of a few bytes can stand for as many zeros as it likes.
inline constexpr size_t kMaxDecodedBytes = size_t{16} << 30;
// Protocol buffers measure in ints; the rest is for the message around it.
inline constexpr size_t kMaxTensorProtoBytes = (size_t{1} << 31) - 4096;

// A copy on the heap, by TensorFlow's rules: tensor_content if there is any, else the values of the
// type's own field, where the last stands for those that are missing, none for zeros, and what is
// too many does not count. Both are ignored for a tensor without elements. `unknown_rank` is
// ignored: the listed dimensions count.
//   Errors: INVALID_ARGUMENT for a type that cannot be sent, a shape that no tensor has, content of
//   another length than the shape's, or bytes that are no elements (CheckValues);
//   RESOURCE_EXHAUSTED above `max_bytes`.
// Source: tensorflow/core/framework/tensor.cc, FromProto; tensor_shape.cc, IsValid.
absl::StatusOr<Tensor> TensorFromProto(const tensorflow::TensorProto& proto,
                                       size_t max_bytes = kMaxDecodedBytes);

// Returns the error that TensorFromProto would return, except for its limit of size, without
// creating the tensor: the elements are checked in place, and only those of types that
// HasIllegalBits.
//   Errors: INVALID_ARGUMENT as above.
absl::Status CheckTensorProto(const tensorflow::TensorProto& proto);

// The elements as tensor_content, strings as string_val: what every reader takes.
//   Errors: INVALID_ARGUMENT for no tensor, or for a message above `max_bytes`, naming the size;
//   nothing is copied then.
absl::StatusOr<tensorflow::TensorProto> TensorToProto(const Tensor& tensor,
                                                      size_t max_bytes = kMaxTensorProtoBytes);

// Type and shape only.
void FillTensorHeader(const Tensor& tensor, tensorflow::TensorProto& proto);

}  // namespace ferry

#endif  // FERRY_TENSOR_TENSOR_PROTO_H_
