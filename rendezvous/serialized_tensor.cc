// SPDX-License-Identifier: Apache-2.0
// Serialization through TensorProto.
#include "rendezvous/serialized_tensor.h"

#include <cstdint>

#include "base/status_macros.h"
#include "tensor/tensor_proto.h"

namespace ferry {

absl::StatusOr<Tensor> SerializeTensor(const Tensor& tensor) {
  FERRY_ASSIGN_OR_RETURN(const tensorflow::TensorProto proto, TensorToProto(tensor));
  const auto bytes = static_cast<int64_t>(proto.ByteSizeLong());
  FERRY_ASSIGN_OR_RETURN(const Shape shape, Shape::Create({bytes}));
  FERRY_ASSIGN_OR_RETURN(Tensor serialized, Tensor::Allocate(DataType::kUint8, shape));
  proto.SerializeToArray(serialized.mutable_data(), static_cast<int>(bytes));
  return serialized;
}

absl::StatusOr<Tensor> DeserializeTensor(const Tensor& bytes) {
  tensorflow::TensorProto proto;
  if (bytes.dtype() != DataType::kUint8 || bytes.bytes() > INT32_MAX ||
      !proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.bytes()))) {
    return absl::InvalidArgumentError("a serialised tensor that cannot be read");
  }
  return TensorFromProto(proto);
}

}  // namespace ferry
