// SPDX-License-Identifier: Apache-2.0
// Serializes string tensors to bytes that any transport can move.
#ifndef FERRY_RENDEZVOUS_SERIALIZED_TENSOR_H_
#define FERRY_RENDEZVOUS_SERIALIZED_TENSOR_H_

#include "absl/status/statusor.h"

#include "tensor/tensor.h"

namespace ferry {

// Returns u8[n]: a tensorflow.TensorProto.
absl::StatusOr<Tensor> SerializeTensor(const Tensor& tensor);
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<Tensor> DeserializeTensor(const Tensor& bytes);

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_SERIALIZED_TENSOR_H_
