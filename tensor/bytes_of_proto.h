// SPDX-License-Identifier: Apache-2.0
// The memory that a tensor needs once TensorFromProto has decoded it.
#ifndef FERRY_TENSOR_BYTES_OF_PROTO_H_
#define FERRY_TENSOR_BYTES_OF_PROTO_H_

#include <cstddef>

#include "proto/tf_tensor.pb.h"

namespace ferry {

// Returns the size in bytes by shape and content: a message of 20 bytes may encode a tensor of 16
// GiB. Strings count with their string objects. SIZE_MAX on overflow; 0 for what TensorFromProto
// rejects because of its type or shape.
size_t DecodedBytes(const tensorflow::TensorProto& proto);

// Saturating addition: SIZE_MAX stays SIZE_MAX.
inline size_t AddBytes(size_t a, size_t b) {
  return b > static_cast<size_t>(-1) - a ? static_cast<size_t>(-1) : a + b;
}

}  // namespace ferry

#endif  // FERRY_TENSOR_BYTES_OF_PROTO_H_
