// SPDX-License-Identifier: Apache-2.0
// Reduction: which dimensions are reduced, and the shape that remains.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_REDUCTION_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_REDUCTION_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

// A value. Adjacent dimensions of the same kind are merged.
struct Reduction {
  // Shape of the output.
  Shape shape;
  std::vector<int64_t> extents;
  // In elements of the output; 0 for a reduced dimension.
  std::vector<int64_t> out_strides;
  // Number of elements reduced to one.
  int64_t reduced_count = 1;

  // True if every element is unchanged.
  bool is_identity() const { return reduced_count == 1; }
};

//   Errors: INVALID_ARGUMENT with TensorFlow's texts.
absl::StatusOr<Reduction> ReductionOf(const Shape& shape, const Tensor& axes, bool keeps_dims);

// Calls row(out, in, count, is_reduced) for each run of `count` input elements along the last
// dimension, with the offsets of its first elements. If `is_reduced`, the run reduces to one output
// element; else each goes to its own. REQUIRES: the input is not empty.
template <typename Row>
void ForEachRow(const Reduction& reduction, Row&& row) {
  const size_t last = reduction.extents.size() - 1;
  const int64_t count = reduction.extents[last];
  const bool is_reduced = reduction.out_strides[last] == 0;
  std::vector<int64_t> index(last, 0);
  int64_t out = 0;
  for (int64_t in = 0;; in += count) {
    row(out, in, count, is_reduced);
    size_t i = last;
    for (;;) {
      if (i == 0) return;
      --i;
      out += reduction.out_strides[i];
      if (++index[i] < reduction.extents[i]) break;
      out -= reduction.out_strides[i] * reduction.extents[i];
      index[i] = 0;
    }
  }
}

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_REDUCTION_H_
