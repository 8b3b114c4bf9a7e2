// SPDX-License-Identifier: Apache-2.0
// Sleeps until the next deadline.
#include "tensorflow/master/timer_thread.h"

#include <algorithm>

namespace ferry::master {

TimerThread::TimerThread(Timers& timers)
    : timers_(timers), thread_("ferry-steps", [this] { Run(); }) {
  timers_.SetWake([this] {
    absl::MutexLock lock(&mu_);
    is_changed_ = true;
    changed_.Signal();
  });
}

TimerThread::~TimerThread() {
  {
    absl::MutexLock lock(&mu_);
    is_closing_ = true;
    changed_.Signal();
  }
  thread_.Join();
}

void TimerThread::Run() {
  // Re-check distant deadlines: absl's clock may be set in the meantime.
  constexpr absl::Duration kLongest = absl::Seconds(10);
  absl::MutexLock lock(&mu_);
  while (!is_closing_) {
    mu_.Unlock();
    timers_.RunDue();
    const absl::Duration left = timers_.NextDeadline() - timers_.Now();
    mu_.Lock();
    if (!is_changed_ && !is_closing_ && left > absl::ZeroDuration()) {
      changed_.WaitWithTimeout(&mu_, std::min(left, kLongest));
    }
    is_changed_ = false;
  }
}

}  // namespace ferry::master
