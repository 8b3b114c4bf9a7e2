// SPDX-License-Identifier: Apache-2.0
// Tensors of strings as bytes that any transport can carry.
#ifndef FERRY_RENDEZVOUS_SERIALIZED_TENSOR_H_
#define FERRY_RENDEZVOUS_SERIALIZED_TENSOR_H_

#include "absl/status/statusor.h"

#include "tensor/tensor.h"

namespace ferry {

// u8[n]: a tensorflow.TensorProto.
absl::StatusOr<Tensor> SerializeTensor(const Tensor& tensor);
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<Tensor> DeserializeTensor(const Tensor& bytes);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_SERIALIZED_TENSOR_H_
