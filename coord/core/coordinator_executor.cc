// SPDX-License-Identifier: Apache-2.0
// The lock, the timer and the queue of completions.
#include "coord/core/coordinator_executor.h"

#include <algorithm>
#include <iterator>

#include "coord/core/pause_detector.h"

namespace ferry::coord {
namespace {

// `after_batch` is called after at most this many batches in a row.
constexpr int kMaxBatches = 4;
}  // namespace

CoordinatorExecutor::CoordinatorExecutor(std::unique_ptr<Coordinator> coordinator)
    : coordinator_(std::move(coordinator)), timer_thread_("ferry-timer", [this] { KeepTime(); }) {}

CoordinatorExecutor::~CoordinatorExecutor() {
  {
    absl::MutexLock lock(&mu_);
    is_closing_ = true;
    timer_moved_.Wake();
  }
  timer_thread_.Join();
}

void CoordinatorExecutor::FinishRunAndUnlock() {
  std::vector<Completion> fresh = coordinator_->TakeCompletions();
  if (due_.empty()) {
    due_ = std::move(fresh);
  } else {
    due_.insert(due_.end(), std::make_move_iterator(fresh.begin()),
                std::make_move_iterator(fresh.end()));
  }
  if (coordinator_->NextDeadline() < timer_) timer_moved_.Wake();
  if (is_draining_) {
    mu_.Unlock();
    return;
  }
  is_draining_ = true;
  int batches = 0;
  while (!due_.empty()) {
    std::vector<Completion> batch = std::exchange(due_, {});
    mu_.Unlock();
    for (Completion& completion : batch) std::move(completion)();
    batch.clear();
    mu_.Lock();
    // Completions queued by the batch belong to it; but a steady stream of them must not postpone
    // this.
    if (after_batch_ && (due_.empty() || ++batches % kMaxBatches == 0)) {
      mu_.Unlock();
      after_batch_();
      mu_.Lock();
    }
  }
  is_draining_ = false;
  mu_.Unlock();
}

void CoordinatorExecutor::KeepTime() {
  // While this process is not running, for example because it is stopped, it receives no
  // heartbeats, which must not count as silence of its tasks.
  PauseDetector pause_detector;
  absl::Duration unheard;
  mu_.Lock();
  while (!is_closing_) {
    timer_ = coordinator_->NextDeadline();
    // The coordinator's clock may be a fake one; only the remaining time matters here.
    const absl::Time now = SteadyClock().Now();
    if (timer_ > now) {
      const uint32_t turn = timer_moved_.turn();
      const absl::Time until = pause_detector.BeginWait(now, timer_);
      mu_.Unlock();
      timer_moved_.WaitUntil(turn, until);
      mu_.Lock();
      unheard = pause_detector.EndWait(SteadyClock().Now());
      if (unheard > absl::ZeroDuration()) coordinator_->ExtendHeartbeatDeadlines(unheard);
    } else {
      // Also late because of the lock, or of completions run on this thread.
      absl::Duration behind = reader_lag_ ? reader_lag_() : absl::ZeroDuration();
      if (unheard == absl::ZeroDuration()) behind = std::max(behind, now - timer_);
      if (behind > PauseDetector::kTolerance) {
        coordinator_->ExtendHeartbeatDeadlines(behind + PauseDetector::kTolerance);
      }
      unheard = absl::ZeroDuration();
      timer_ = absl::InfinitePast();
      coordinator_->Advance();
      FinishRunAndUnlock();
      mu_.Lock();
    }
  }
  mu_.Unlock();
}

}  // namespace ferry::coord
