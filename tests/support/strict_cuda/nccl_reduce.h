// SPDX-License-Identifier: Apache-2.0
// Arithmetic of reductions.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_REDUCE_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_REDUCE_H_

#include <string>

#include "tests/support/strict_cuda/nccl_abi.h"

namespace strict_cuda {

// Returns true if the fake driver can reduce values of `type`: integers, and floats of 32 and 64
// bits.
bool IsReducible(ncclDataType_t type);
// into[i] = op(into[i], from[i]). ncclAvg sums; Divide ends it.
void Reduce(ncclDataType_t type, ncclRedOp_t op, const std::string& from, std::string& into);
void Divide(ncclDataType_t type, int by, std::string& values);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_NCCL_REDUCE_H_
