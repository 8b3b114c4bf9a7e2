// SPDX-License-Identifier: Apache-2.0
// A fixed number of slots, kept busy until the end.
#include "bench/loop.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"

namespace ferry::cli {
namespace {

// Shared with the callbacks, which may run after the loop was abandoned.
class Loop final : public std::enable_shared_from_this<Loop> {
 public:
  Loop(int count, BenchOperation operation)
      : count_(count), operation_(std::move(operation)), samples_(static_cast<size_t>(count)) {}

  // Starts the next operation, if any. `is_chained`: its completion starts the next one.
  void Begin(bool is_chained) {
    const int index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count_) return;
    operation_(index, [self = shared_from_this(), index, is_chained,
                       start = SteadyClock().Now()](absl::Status status) {
      self->samples_[static_cast<size_t>(index)] = SteadyClock().Now() - start;
      const bool goes_on = self->End(std::move(status));
      if (is_chained && goes_on) self->Begin(true);
    });
  }

  // Blocks until `count` operations are done, or one has failed.
  absl::Status Wait(int count, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto is_over = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return done_ >= count || !error_.ok();
    };
    if (!mu_.AwaitWithTimeout(absl::Condition(&is_over), deadline - SteadyClock().Now())) {
      error_ = absl::DeadlineExceededError(
          absl::StrCat(done_, " of ", count_, " operations were answered in time"));
    }
    return error_;
  }

  std::vector<absl::Duration> TakeSamples() { return std::move(samples_); }

 private:
  bool End(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++done_;
    if (error_.ok()) error_ = std::move(status);
    return error_.ok();
  }

  const int count_;
  const BenchOperation operation_;
  std::atomic<int> next_ = 0;
  // Each entry is written by its operation's completion, and read when all are done.
  std::vector<absl::Duration> samples_;
  absl::Mutex mu_;
  int done_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<BenchLoad> RunBenchLoop(int count, int inflight, const BenchOperation& operation,
                                       const std::function<double()>& cpu_s,
                                       absl::Duration timeout) {
  const auto loop = std::make_shared<Loop>(count, operation);
  const double cpu_before = cpu_s();
  const absl::Time start = SteadyClock().Now();
  const absl::Time deadline = start + timeout;
  absl::Status status;
  if (inflight == 1) {
    for (int i = 0; i < count && status.ok(); ++i) {
      loop->Begin(/*is_chained=*/false);
      status = loop->Wait(i + 1, deadline);
    }
  } else {
    for (int i = 0; i < std::min(inflight, count); ++i) loop->Begin(/*is_chained=*/true);
    status = loop->Wait(count, deadline);
  }
  if (!status.ok()) return status;
  const absl::Duration whole = SteadyClock().Now() - start;
  return BenchLoad{.samples = loop->TakeSamples(), .whole = whole, .cpu_s = cpu_s() - cpu_before};
}

}  // namespace ferry::cli
