// SPDX-License-Identifier: Apache-2.0
// Element-wise sums with the type known at run time.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_ADD_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_ADD_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "tensor/data_type.h"
#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

// out[i] = x[i] + y[i]. `out` may alias `x` or `y`. REQUIRES: a numeric type.
void AddArrays(DataType dtype, const void* x, const void* y, void* out, int64_t count);

// AddN adds in TensorFlow's order, for the same rounding: first FirstAddends inputs one after the
// other, then groups of kAddendGroup, each summed separately.
inline constexpr int kAddendGroup = 8;
// REQUIRES: at least two inputs.
int FirstAddends(int input_count);
// Checks that all inputs have the same shape.
//   Errors: INVALID_ARGUMENT with TensorFlow's text.
absl::Status CheckAddends(const KernelContext& context, const std::string& name);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_ADD_H_
