// SPDX-License-Identifier: Apache-2.0
// Clock: the source of time, so that tests can control it.
#ifndef FERRY_BASE_CLOCK_H_
#define FERRY_BASE_CLOCK_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ferry {

// Thread-safe. Its times are only meaningful as differences and deadlines: the real clock counts
// from boot, not from 1970, and neither NTP nor an operator can set it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  // As Now, but may lag by some milliseconds; costs a few nanoseconds.
  virtual absl::Time CoarseNow() const { return Now(); }
  // CoarseNow in nanoseconds since 1970, as absl::FromUnixNanos takes them, which costs less.
  virtual int64_t CoarseNanos() const { return absl::ToUnixNanos(CoarseNow()); }
};

// The machine's monotonic clock; never destroyed.
Clock& SteadyClock();

// A clock that moves only when told to. For tests and simulations.
class FakeClock final : public Clock {
 public:
  absl::Time Now() const override ABSL_LOCKS_EXCLUDED(mu_);
  // Advances by `delta`; a negative one goes back, as a broken clock might.
  void Advance(absl::Duration delta) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::UnixEpoch() + absl::Hours(1);
};

}  // namespace ferry

#endif  // FERRY_BASE_CLOCK_H_
