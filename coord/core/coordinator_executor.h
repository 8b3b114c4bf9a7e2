// SPDX-License-Identifier: Apache-2.0
// CoordinatorExecutor: makes a Coordinator safe to use from many threads, and keeps its time.
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
// which is dearer than anything the coordinator does under the lock. Completions run with no lock
// held, in the order in which they fell due, on whichever thread is in Run at the time (perhaps
// before its Run returns) or on the timer thread "ferry-timer".
class CoordinatorExecutor final {
 public:
  explicit CoordinatorExecutor(std::unique_ptr<Coordinator> coordinator);
  // REQUIRES: nobody calls Run any more.
  ~CoordinatorExecutor();

  CoordinatorExecutor(const CoordinatorExecutor&) = delete;
  CoordinatorExecutor& operator=(const CoordinatorExecutor&) = delete;

  // Called with no lock held when completions have run, and those that they led to, on the same
  // thread; for what is better done once for many of them. Set before the first Run.
  void SetAfterBatch(std::function<void()> after_batch) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    after_batch_ = std::move(after_batch);
  }

  // How long those who read from the tasks have been behind, 0 mostly: so long no task is called
  // silent. Called with the lock held. Set before the first Run.
  void SetReaderLag(std::function<absl::Duration()> lag) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    reader_lag_ = std::move(lag);
  }

  // Calls `body(coordinator)` alone and returns what it returns. The body must not block.
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
  // Some thread is running completions; others only add theirs, so that the order is kept.
  bool is_draining_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;
  // When the timer thread means to wake up.
  absl::Time timer_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  Thread timer_thread_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_COORDINATOR_EXECUTOR_H_
