// SPDX-License-Identifier: Apache-2.0
// The steady clock and the fake one.
#include "base/clock.h"

#include <time.h>

#include <chrono>

namespace ferry {
namespace {

class SteadyClockImpl final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() +
           absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time CoarseNow() const override {
    // The same clock as steady_clock, read at the kernel's last tick.
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return absl::TimeFromTimespec(now);
  }
  int64_t CoarseNanos() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }
};

}  // namespace

Clock& SteadyClock() {
  static SteadyClockImpl* const kClock = new SteadyClockImpl;
  return *kClock;
}

absl::Time FakeClock::Now() const {
  absl::MutexLock lock(&mu_);
  return now_;
}

void FakeClock::Advance(absl::Duration delta) {
  absl::MutexLock lock(&mu_);
  now_ += delta;
}

}  // namespace ferry
