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

// A message of a few bytes can encode arbitrarily many zeros.
inline constexpr size_t kMaxDecodedBytes = size_t{16} << 30;
// Protocol buffers measure in ints; the remainder is for the enclosing message.
inline constexpr size_t kMaxTensorProtoBytes = (size_t{1} << 31) - 4096;

// Returns a copy on the heap, by TensorFlow's rules: tensor_content if present, else the values of
// the type's own field, where the last value stands for missing ones, no values mean zeros, and
// surplus values are ignored. Both are ignored for a tensor without elements. `unknown_rank` is
// ignored: the listed dimensions apply.
//   Errors: INVALID_ARGUMENT for a type that cannot be sent, an invalid shape, content whose
//   length does not match the shape, or bytes that are no elements (CheckValues);
//   RESOURCE_EXHAUSTED above `max_bytes`.
// Source: tensorflow/core/framework/tensor.cc, FromProto; tensor_shape.cc, IsValid.
absl::StatusOr<Tensor> TensorFromProto(const tensorflow::TensorProto& proto,
                                       size_t max_bytes = kMaxDecodedBytes);

// Returns the error that TensorFromProto would return, except for its size limit, without creating
// the tensor: the elements are checked in place, and only for types that HasIllegalBits.
//   Errors: INVALID_ARGUMENT as above.
absl::Status CheckTensorProto(const tensorflow::TensorProto& proto);

// Encodes the elements as tensor_content, strings as string_val: every reader accepts these.
//   Errors: INVALID_ARGUMENT for no tensor, or for a message above `max_bytes`, naming the size;
//   nothing is copied then.
absl::StatusOr<tensorflow::TensorProto> TensorToProto(const Tensor& tensor,
                                                      size_t max_bytes = kMaxTensorProtoBytes);

// Type and shape only.
void FillTensorHeader(const Tensor& tensor, tensorflow::TensorProto& proto);

}  // namespace ferry

#endif  // FERRY_TENSOR_TENSOR_PROTO_H_
