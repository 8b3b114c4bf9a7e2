// SPDX-License-Identifier: Apache-2.0
// Contexts: one per device and process, and which is current in a thread.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_CONTEXT_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_CONTEXT_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/support/strict_cuda/abi.h"
#include "tests/support/strict_cuda/config.h"
#include "tests/support/strict_cuda/hardware_queues.h"

namespace strict_cuda {

// Never deleted: a handle that outlives its context is recognised.
struct Context {
  int physical = 0;
  int ordinal = 0;
  std::atomic<int> references = 0;
  std::atomic<CUresult> error = 0;  // of asynchronous work; sticky
  std::atomic<bool> peer_enabled[kMaxDevices] = {};

  std::mutex mu;                       // after the process's lock, before those of streams
  std::vector<StreamHandle*> streams;  // guarded by mu; those that are destroyed too
  StreamHandle* legacy = nullptr;      // guarded by mu
  HardwareQueues queues;               // guarded by mu
  PoolHandle* default_pool = nullptr;  // guarded by the process's lock
};

// Guards all tables of this process. Never held while waiting.
std::mutex& ProcessMutex();

// The calling thread's; null without one.
Context* CurrentContext();
// CUDA_SUCCESS and the current context, or the error of a call that needs one.
CUresult RequireContext(Context** context);
// The context of a device of this machine, or null if it is not active in this process.
Context* ActiveContextOf(int physical);
// Whether `device` is an ordinal that this process sees.
bool IsDevice(CUdevice device);
int PhysicalOf(CUdevice device);
// -1 for a device that this process does not see.
int OrdinalOf(int physical);
// Waits until all that has been enqueued in the context has ended.
void SynchronizeContext(Context& context);

// Remembers the first error of the asynchronous work of a context.
void FailContext(Context& context, CUresult error);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_CONTEXT_H_
