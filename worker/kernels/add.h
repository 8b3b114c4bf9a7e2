// SPDX-License-Identifier: Apache-2.0
// Sums of arrays whose type is known at run time.
#ifndef FERRY_WORKER_KERNELS_ADD_H_
#define FERRY_WORKER_KERNELS_ADD_H_

#include <cstdint>

#include "tensor/data_type.h"

namespace ferry::worker {

// out[i] = x[i] + y[i]. `out` may be `x` or `y`. REQUIRES: a type of numbers.
void AddArrays(DataType dtype, const void* x, const void* y, void* out, int64_t count);

}  // namespace ferry::worker

#endif  // FERRY_WORKER_KERNELS_ADD_H_
