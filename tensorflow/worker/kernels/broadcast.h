// SPDX-License-Identifier: Apache-2.0
// Broadcasting of two shapes.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_BROADCAST_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_BROADCAST_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "tensor/shape.h"

namespace ferry::worker {

// A value. Adjacent dimensions with the same behaviour are merged; there is at least one, and in
// the last one each tensor's stride is 0 or 1.
struct Broadcast {
  Shape shape;
  std::vector<int64_t> extents;
  // In elements; 0 where the tensor is broadcast.
  std::vector<int64_t> x_strides;
  std::vector<int64_t> y_strides;
};

//   Errors: INVALID_ARGUMENT with TensorFlow's text.
absl::StatusOr<Broadcast> BroadcastOf(const Shape& x, const Shape& y);

// Calls row(x, y, out, count) for each run along the last dimension, with the offsets of its first
// elements, in order. REQUIRES: the shape is not empty.
template <typename Row>
void ForEachRow(const Broadcast& broadcast, Row&& row) {
  const size_t last = broadcast.extents.size() - 1;
  const int64_t count = broadcast.extents[last];
  std::vector<int64_t> index(last, 0);
  int64_t x = 0;
  int64_t y = 0;
  for (int64_t out = 0;; out += count) {
    row(x, y, out, count);
    size_t i = last;
    for (;;) {
      if (i == 0) return;
      --i;
      x += broadcast.x_strides[i];
      y += broadcast.y_strides[i];
      if (++index[i] < broadcast.extents[i]) break;
      x -= broadcast.x_strides[i] * broadcast.extents[i];
      y -= broadcast.y_strides[i] * broadcast.extents[i];
      index[i] = 0;
    }
  }
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_BROADCAST_H_
