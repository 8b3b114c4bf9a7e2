// SPDX-License-Identifier: Apache-2.0
// Event loop timers, and a thread for what remains at destruction.
#include "transport/cuda_ipc/deferred_release_queue.h"

#include <pthread.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/time/clock.h"

#include "base/clock.h"

namespace ferry {

void DeferredReleaseQueue::Keep(absl::AnyInvocable<void() &&> then) {
  const absl::Time until = SteadyClock().Now() + kGrace;
  uint64_t id = 0;
  {
    absl::MutexLock lock(&state_->mu);
    id = ++state_->last_id;
    state_->entries.emplace(id, Entry{until, std::move(then)});
  }
  loop_.PostAt(until, [state = std::weak_ptr<State>(state_), id] {
    const auto open = state.lock();
    if (open == nullptr) return;
    absl::AnyInvocable<void() &&> over;
    {
      absl::MutexLock lock(&open->mu);
      const auto found = open->entries.find(id);
      if (found == open->entries.end()) return;
      over = std::move(found->second.then);
      open->entries.erase(found);
    }
    std::move(over)();
  });
}

DeferredReleaseQueue::~DeferredReleaseQueue() {
  std::map<uint64_t, Entry> left;
  {
    absl::MutexLock lock(&state_->mu);
    left.swap(state_->entries);
  }
  if (left.empty()) return;
  absl::Time until = absl::InfinitePast();
  for (const auto& [id, entry] : left) until = std::max(until, entry.until);
  // Detached: if the process exits first, the driver frees the rest.
  std::thread([until, left = std::move(left)]() mutable {
    pthread_setname_np(pthread_self(), "ferry-grace");
    absl::SleepFor(until - SteadyClock().Now());
    left.clear();
  }).detach();
}

}  // namespace ferry
