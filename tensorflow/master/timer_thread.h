// SPDX-License-Identifier: Apache-2.0
// TimerThread: drives Timers in real time.
#ifndef FERRY_TENSORFLOW_MASTER_TIMER_THREAD_H_
#define FERRY_TENSORFLOW_MASTER_TIMER_THREAD_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "base/thread.h"
#include "tensorflow/master/timers.h"

namespace ferry::master {

// Runs due timers on the thread "ferry-steps" until destroyed. `timers` must use SteadyClock, must
// not be in use yet, and must outlive it.
class TimerThread final {
 public:
  explicit TimerThread(Timers& timers);
  ~TimerThread();

  TimerThread(const TimerThread&) = delete;
  TimerThread& operator=(const TimerThread&) = delete;

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  Timers& timers_;
  absl::Mutex mu_;
  absl::CondVar changed_;
  bool is_changed_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_TIMER_THREAD_H_
