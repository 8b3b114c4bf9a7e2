// SPDX-License-Identifier: Apache-2.0
// Handles a violation of a rule of CUDA or NCCL: reports the rule, the call and the remedy, then
// aborts.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_VIOLATION_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_VIOLATION_H_

namespace strict_cuda {

// Each has a name, a sentence and a remedy in violation.cc.
enum class Rule {
  kFork,
  kHostFunction,
  kIpcSameProcess,
  kIpcMemoryKind,
  kIpcDoubleClose,
  kFreeWhileImported,
  kEventSameProcess,
  kEventDestroyedWhileImported,
  kEventInterprocessTiming,
  kEventNotInterprocess,
  kEventReuse,
  kEventWaitBeforeRecord,
  kUseAfterFree,
  kUseAfterDestroy,
  kUseBeforeReady,
  kDoubleFree,
  kFreeInUse,
  kNoAccess,
  kPoolImportedAlloc,
  kVmm,
  kImplicitSync,
  kNcclCountMismatch,
  kNcclFirstExchange,
  kNcclThreads,
  kNcclDeadlock,
  kNcclIdReuse,
  kNcclAfterAbort,
  kNcclAfterFinalize,
  kNcclMixedBlocking,
  kNcclGroupTooLarge,
  kNcclGroup,
  kNcclSelf,
  kNcclWrongDevice,
  kNcclDestroyBusy,
  kNcclNotReady,
  kNcclAbortOrder,
  kNcclAbortInCall,
  kNcclAbortUnderPeer,
  kNcclWindow,
  kNcclWaitSignal,
};

// Reports to stderr and to the report file, then aborts the process, or counts the violation when
// STRICT_CUDA_ON_BREACH=record. `call` is the symbol; the rest describes the observation.
__attribute__((format(printf, 3, 4))) void Violation(Rule rule, const char* call,
                                                     const char* format, ...);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_VIOLATION_H_
