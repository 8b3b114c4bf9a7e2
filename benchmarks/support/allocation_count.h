// SPDX-License-Identifier: Apache-2.0
// Counts allocations: a program that links this file has its operators new.
#ifndef FERRY_BENCHMARKS_SUPPORT_ALLOCATION_COUNT_H_
#define FERRY_BENCHMARKS_SUPPORT_ALLOCATION_COUNT_H_

#include <cstdint>

namespace ferry::bench {

// Returns the number of calls of operator new by this thread so far.
int64_t AllocationsOfThisThread();

}  // namespace ferry::bench

#endif  // FERRY_BENCHMARKS_SUPPORT_ALLOCATION_COUNT_H_
