// SPDX-License-Identifier: Apache-2.0
// An event: its last record, here or in the machine's table.
#ifndef FERRY_TESTS_SUPPORT_STRICT_CUDA_EVENTS_H_
#define FERRY_TESTS_SUPPORT_STRICT_CUDA_EVENTS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "tests/support/strict_cuda/abi.h"
#include "tests/support/strict_cuda/context.h"
#include "tests/support/strict_cuda/machine.h"

namespace strict_cuda {

// One record of an event. Thread-safe.
class Marker final {
 public:
  void Set();
  bool IsDone();
  void Wait();
  std::chrono::steady_clock::time_point time();

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool is_done_ = false;
  std::chrono::steady_clock::time_point time_;
};

// Never deleted, so that a handle that outlives its event is recognised.
struct EventHandle {
  Context* context = nullptr;
  unsigned int flags = 0;
  SharedEvent* shared = nullptr;  // of interprocess events
  bool is_imported = false;
  std::atomic<bool> destroyed = false;

  std::mutex mu;
  std::shared_ptr<Marker> marker;  // guarded by mu; null before the first record
};

EventHandle* NewEvent(Context& context, unsigned int flags);
CUresult CheckEvent(CUevent handle, const char* call);

}  // namespace strict_cuda

#endif  // FERRY_TESTS_SUPPORT_STRICT_CUDA_EVENTS_H_
