// SPDX-License-Identifier: Apache-2.0
// A table sorted by time.
#include "tensorflow/master/timers.h"

namespace ferry::master {

Timers::Id Timers::Add(absl::Time at, absl::AnyInvocable<void() &&> due) {
  if (at == absl::InfiniteFuture()) return kNone;
  bool is_first = false;
  Id id = kNone;
  {
    absl::MutexLock lock(&mu_);
    id = ++last_id_;
    is_first = timers_.empty() || at < timers_.begin()->first.first;
    timers_.emplace(Key{at, id}, std::move(due));
    times_.emplace(id, at);
  }
  if (is_first && wake_) wake_();
  return id;
}

bool Timers::Remove(Id id) {
  // Destroyed after the lock is released: the callback's captures may have side effects.
  absl::AnyInvocable<void() &&> dropped;
  absl::MutexLock lock(&mu_);
  const auto found = times_.find(id);
  if (found == times_.end()) return false;
  const auto timer = timers_.find(Key{found->second, id});
  dropped = std::move(timer->second);
  timers_.erase(timer);
  times_.erase(found);
  return true;
}

absl::Time Timers::NextDeadline() const {
  absl::MutexLock lock(&mu_);
  return timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first.first;
}

void Timers::RunDue() {
  const absl::Time now = clock_.Now();
  while (true) {
    absl::AnyInvocable<void() &&> due;
    {
      absl::MutexLock lock(&mu_);
      if (timers_.empty() || timers_.begin()->first.first > now) return;
      due = std::move(timers_.begin()->second);
      times_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
    }
    std::move(due)();
  }
}

}  // namespace ferry::master
