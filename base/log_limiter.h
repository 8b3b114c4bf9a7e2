// SPDX-License-Identifier: Apache-2.0
// LogLimiter: keeps lines that others can cause without end from filling the disk.
#ifndef FERRY_BASE_LOG_LIMITER_H_
#define FERRY_BASE_LOG_LIMITER_H_

#include <cstddef>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"

namespace ferry {

// Thread-safe. A period begins with the first line after the one before.
class LogLimiter final {
 public:
  // `clock` outlives it.
  LogLimiter(const Clock& clock, size_t lines, absl::Duration period)
      : clock_(clock), lines_(lines), period_(period) {}

  // Returns true if one more line may be written.
  bool Allow() ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Time now = clock_.CoarseNow();
    absl::MutexLock lock(&mu_);
    if (now >= end_) {
      end_ = now + period_;
      written_ = 0;
    }
    if (written_ < lines_) {
      ++written_;
      return true;
    }
    ++left_out_;
    return false;
  }
  // The number of lines that were left out and not returned yet, if their period has ended.
  size_t TakeLeftOut() ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Time now = clock_.CoarseNow();
    absl::MutexLock lock(&mu_);
    return now < end_ ? 0 : std::exchange(left_out_, 0);
  }
  bool has_left_out() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return left_out_ > 0;
  }

 private:
  const Clock& clock_;
  const size_t lines_;
  const absl::Duration period_;

  mutable absl::Mutex mu_;
  absl::Time end_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  size_t written_ ABSL_GUARDED_BY(mu_) = 0;
  size_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ferry

#endif  // FERRY_BASE_LOG_LIMITER_H_
