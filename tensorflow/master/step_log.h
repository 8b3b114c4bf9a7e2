// SPDX-License-Identifier: Apache-2.0
// StepLog: start times of a master's last steps and the duration of each worker's part.
#ifndef FERRY_TENSORFLOW_MASTER_STEP_LOG_H_
#define FERRY_TENSORFLOW_MASTER_STEP_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ferry::master {

struct LoggedStep {
  struct Call {
    std::string worker;
    absl::Time start;
    absl::Time end;
  };

  int64_t step_id = 0;
  absl::Time start;
  absl::Time end;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::vector<Call> calls;
};

// Thread-safe. The oldest entry is dropped first.
class StepLog final {
 public:
  //   max_steps: number of steps kept; 0: none.
  explicit StepLog(size_t max_steps) : max_steps_(max_steps) {}

  size_t max_steps() const { return max_steps_; }

  void Add(LoggedStep step) ABSL_LOCKS_EXCLUDED(mu_) {
    LoggedStep gone;
    absl::MutexLock lock(&mu_);
    steps_.push_back(std::move(step));
    if (steps_.size() <= max_steps_) return;
    gone = std::move(steps_.front());
    steps_.pop_front();
  }
  // Returns the newest `count` steps, oldest first.
  std::vector<LoggedStep> Last(size_t count) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const size_t first = count < steps_.size() ? steps_.size() - count : 0;
    return {steps_.begin() + static_cast<std::ptrdiff_t>(first), steps_.end()};
  }

 private:
  const size_t max_steps_;
  mutable absl::Mutex mu_;
  std::deque<LoggedStep> steps_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_STEP_LOG_H_
