// SPDX-License-Identifier: Apache-2.0
// SpinLock: for critical sections of some tens of nanoseconds on a hot path.
#ifndef FERRY_BASE_SPIN_LOCK_H_
#define FERRY_BASE_SPIN_LOCK_H_

#include <sched.h>

#include <atomic>

#include "absl/base/thread_annotations.h"

namespace ferry {

// One atomic exchange to lock and one plain store to unlock: a third of absl::Mutex's cost, which
// taken twice is most of the cost of a send and a receive (benchmarks/rendezvous_bench). A
// contender spins for about a microsecond, then yields its core, since the holder may have been
// preempted. Never hold it while calling out, allocating much, or waiting.
class ABSL_LOCKABLE SpinLock final {
 public:
  SpinLock() = default;
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (!is_held_.exchange(true, std::memory_order_acquire)) return;
    for (int spins = 0;; ++spins) {
      // Reads without writing, so that the cache line stays shared until the lock is free.
      while (is_held_.load(std::memory_order_relaxed)) {
        if (++spins < kSpins) {
          Pause();
        } else {
          sched_yield();
        }
      }
      if (!is_held_.exchange(true, std::memory_order_acquire)) return;
    }
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { is_held_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 64;

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::atomic<bool> is_held_{false};
};

class ABSL_SCOPED_LOCKABLE SpinLockHolder final {
 public:
  explicit SpinLockHolder(SpinLock* lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(*lock) {
    lock_.Lock();
  }
  ~SpinLockHolder() ABSL_UNLOCK_FUNCTION() { lock_.Unlock(); }

  SpinLockHolder(const SpinLockHolder&) = delete;
  SpinLockHolder& operator=(const SpinLockHolder&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace ferry

#endif  // FERRY_BASE_SPIN_LOCK_H_
