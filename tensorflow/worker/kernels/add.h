// SPDX-License-Identifier: Apache-2.0
// Sums of arrays whose type is known at run time.
#ifndef FERRY_TENSORFLOW_WORKER_KERNELS_ADD_H_
#define FERRY_TENSORFLOW_WORKER_KERNELS_ADD_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "tensor/data_type.h"
#include "tensorflow/worker/kernel.h"

namespace ferry::worker {

// out[i] = x[i] + y[i]. `out` may be `x` or `y`. REQUIRES: a type of numbers.
void AddArrays(DataType dtype, const void* x, const void* y, void* out, int64_t count);

// AddN adds in TensorFlow's order, so that sums are rounded as there: first so many inputs one
// after the other, then groups, each summed by itself.
inline constexpr int kAddendGroup = 8;
// REQUIRES: at least two inputs.
int FirstAddends(int input_count);
// Whether all inputs have one shape.
//   Errors: INVALID_ARGUMENT with TensorFlow's text.
absl::Status CheckAddends(const KernelContext& context, const std::string& name);

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_KERNELS_ADD_H_
