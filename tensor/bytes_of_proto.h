// SPDX-License-Identifier: Apache-2.0
// What a tensor takes once TensorFromProto has made it.
#ifndef FERRY_TENSOR_BYTES_OF_PROTO_H_
#define FERRY_TENSOR_BYTES_OF_PROTO_H_

#include <cstddef>

#include "proto/tf_tensor.pb.h"

namespace ferry {

// Bytes, as the shape says and whatever is there: a message of 20 bytes may be a tensor of 16 GiB.
// Strings count with what holds them. SIZE_MAX for more than can be counted, 0 for what
// TensorFromProto refuses for its type or its shape.
size_t DecodedBytes(const tensorflow::TensorProto& proto);

// Counts as far as it can: SIZE_MAX stays.
inline size_t AddBytes(size_t a, size_t b) {
  return b > static_cast<size_t>(-1) - a ? static_cast<size_t>(-1) : a + b;
}

}  // namespace ferry

#endif  // FERRY_TENSOR_BYTES_OF_PROTO_H_
