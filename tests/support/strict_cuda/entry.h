// SPDX-License-Identifier: Apache-2.0
// The beginning of every exported function: injected faults, fork detection, initialization.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_ENTRY_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_ENTRY_H_

#include "tests/support/strict_cuda/abi.h"
#include "tests/support/strict_cuda/export.h"

namespace strict_cuda {

// The injected result of the next call of `symbol`, or 0. Counts the call.
int TakeFault(const char* symbol);

// CUDA_SUCCESS, or an immediate result of the driver function `symbol`.
CUresult Enter(const char* symbol);

// The same, without the need for cuInit. Breaks the rule "fork" in a child.
void CheckFork(const char* symbol);
void SetInitialized();
// After an illegal access of the device no driver call of the process succeeds any more.
void SetProcessError(CUresult error);
CUresult ProcessError();
// Whether the work that the current call enqueues is to access an illegal address (fault -3). True
// once.
bool TakeIllegalAccess();
// While a thread runs a host function of a stream, each call in it is a violation.
void SetInHostFunction(bool is_in);

}  // namespace strict_cuda

// The first line of a driver function.
#define STRICT_CUDA_ENTER()                                                               \
  if (const ::strict_cuda::CUresult early = ::strict_cuda::Enter(__func__); early != 0) { \
    return early;                                                                         \
  }                                                                                       \
  static_assert(true)

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_ENTRY_H_
