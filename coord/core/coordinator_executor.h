// SPDX-License-Identifier: Apache-2.0
// CoordinatorExecutor: makes a Coordinator thread-safe and drives its timers.
#ifndef FERRY_COORD_CORE_COORDINATOR_EXECUTOR_H_
#define FERRY_COORD_CORE_COORDINATOR_EXECUTOR_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/thread.h"
#include "base/wakeup.h"
#include "coord/core/coordinator.h"

namespace ferry::coord {

// Thread-safe. A lock rather than a queue to another thread: a hand-over would cost a wake-up,
// which is more expensive than anything the coordinator does under the lock. Completions run with
// no lock held, in the order in which they became due, on a thread that is in Run at the time
// (perhaps before its Run returns) or on the timer thread "ferry-timer".
class CoordinatorExecutor final {
 public:
  explicit CoordinatorExecutor(std::unique_ptr<Coordinator> coordinator);
  // REQUIRES: no more calls of Run.
  ~CoordinatorExecutor();

  CoordinatorExecutor(const CoordinatorExecutor&) = delete;
  CoordinatorExecutor& operator=(const CoordinatorExecutor&) = delete;

  // Called with no lock held after completions, and those they caused, have run, on the same
  // thread; for work that is batched over many of them. Set before the first Run.
  void SetAfterBatch(std::function<void()> after_batch) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    after_batch_ = std::move(after_batch);
  }

  // How far the threads that read from the tasks are behind, usually 0: a task counts as silent
  // only after that much more time. Called with the lock held. Set before the first Run.
  void SetReaderLag(std::function<absl::Duration()> lag) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    reader_lag_ = std::move(lag);
  }

  // Calls `body(coordinator)` under the lock and returns its result. The body must not block.
  template <typename Body>
  auto Run(Body&& body) ABSL_LOCKS_EXCLUDED(mu_) {
    using Result = decltype(body(*coordinator_));
    mu_.Lock();
    if constexpr (std::is_void_v<Result>) {
      body(*coordinator_);
      FinishRunAndUnlock();
    } else {
      Result result = body(*coordinator_);
      FinishRunAndUnlock();
      return result;
    }
  }

 private:
  void FinishRunAndUnlock() ABSL_UNLOCK_FUNCTION(mu_);
  void KeepTime() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  Wakeup timer_moved_;
  const std::unique_ptr<Coordinator> coordinator_ ABSL_PT_GUARDED_BY(mu_);
  // Constant once in use.
  std::function<void()> after_batch_;
  std::function<absl::Duration()> reader_lag_;
  std::vector<Completion> due_ ABSL_GUARDED_BY(mu_);
  // Some thread is running completions; others only queue theirs, which keeps the order.
  bool is_draining_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;
  // When the timer thread will wake up.
  absl::Time timer_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  Thread timer_thread_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_COORDINATOR_EXECUTOR_H_
