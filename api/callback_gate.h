// SPDX-License-Identifier: Apache-2.0
// CallbackGate: lets the owner of a callback end it for good.
#ifndef FERRY_API_CALLBACK_GATE_H_
#define FERRY_API_CALLBACK_GATE_H_

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace ferry::v0 {

// Shared by the owner and the source of the calls, which may still make some when it has been told
// to stop. Calls exclude each other. Thread-safe.
class CallbackGate final {
 public:
  // Calls `body`, unless Stop was called.
  void Run(absl::FunctionRef<void()> body) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for a call in progress, unless it is this thread's; afterwards none begins.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::atomic<bool> is_stopped_{false};
  // The thread that is in a call.
  std::atomic<std::thread::id> caller_{};
};

}  // namespace ferry::v0

#endif  // FERRY_API_CALLBACK_GATE_H_
