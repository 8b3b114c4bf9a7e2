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
    state_->entries.emplace(id, Entry{until, nullptr, std::move(then)});
  }
  state_->loop.PostAt(until, [weak = std::weak_ptr<State>(state_), id] {
    if (const auto state = weak.lock()) End(*state, id);
  });
}

void DeferredReleaseQueue::KeepUntil(absl::AnyInvocable<bool()> is_over,
                                     absl::AnyInvocable<void() &&> then) {
  uint64_t id = 0;
  {
    absl::MutexLock lock(&state_->mu);
    id = ++state_->last_id;
    state_->entries.emplace(
        id,
        Entry{absl::InfiniteFuture(),
              std::make_shared<absl::AnyInvocable<bool()>>(std::move(is_over)), std::move(then)});
  }
  LookAgain(state_, id);
}

void DeferredReleaseQueue::LookAgain(const std::shared_ptr<State>& state, uint64_t id) {
  state->loop.PostAt(SteadyClock().Now() + kLook, [weak = std::weak_ptr<State>(state), id] {
    const auto open = weak.lock();
    if (open == nullptr) return;
    std::shared_ptr<absl::AnyInvocable<bool()>> is_over;
    {
      absl::MutexLock lock(&open->mu);
      const auto found = open->entries.find(id);
      if (found == open->entries.end()) return;
      is_over = found->second.is_over;
    }
    if ((*is_over)()) return End(*open, id);
    LookAgain(open, id);
  });
}

void DeferredReleaseQueue::End(State& state, uint64_t id) {
  absl::AnyInvocable<void() &&> over;
  {
    absl::MutexLock lock(&state.mu);
    const auto found = state.entries.find(id);
    if (found == state.entries.end()) return;
    over = std::move(found->second.then);
    state.entries.erase(found);
  }
  std::move(over)();
}

DeferredReleaseQueue::~DeferredReleaseQueue() {
  std::map<uint64_t, Entry> left;
  {
    absl::MutexLock lock(&state_->mu);
    left.swap(state_->entries);
  }
  if (left.empty()) return;
  const absl::Time grace = SteadyClock().Now() + kGrace;
  absl::Time until = absl::InfinitePast();
  for (const auto& [id, entry] : left) until = std::max(until, std::min(entry.until, grace));
  // Detached: if the process exits first, the driver frees the rest.
  std::thread([until, left = std::move(left)]() mutable {
    pthread_setname_np(pthread_self(), "ferry-grace");
    absl::SleepFor(until - SteadyClock().Now());
    left.clear();
  }).detach();
}

}  // namespace ferry
