// SPDX-License-Identifier: Apache-2.0
// Small allocations share blocks of 2 MiB, as the driver's do: a handle exposes its neighbours.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_BLOCKS_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_BLOCKS_H_

#include "tests/support/strict_cuda/memory.h"

namespace strict_cuda {

// Larger ones have memory of their own.
inline constexpr size_t kMaxInBlock = size_t{1} << 20;

// These REQUIRE the process's lock.

// Sets base, backing, offset and host of `range` from its bytes and device. False if there is no
// memory.
bool TakeFromBlock(Range& range);
bool IsInBlock(const Range& range);
void GiveToBlock(const Range& range);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_BLOCKS_H_
