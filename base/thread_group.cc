// SPDX-License-Identifier: Apache-2.0
// Threads that have ended are joined when the next one begins.
#include "base/thread_group.h"

#include <algorithm>
#include <utility>

namespace ferry {

bool ThreadGroup::Run(std::string name, absl::AnyInvocable<void() &&> body) {
  std::vector<Entry> over;
  absl::MutexLock lock(&mu_);
  if (is_stopped_) return false;
  const auto first_over = std::partition(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return !entry.is_over->load(std::memory_order_acquire);
  });
  over.assign(std::make_move_iterator(first_over), std::make_move_iterator(entries_.end()));
  entries_.erase(first_over, entries_.end());
  auto is_over = std::make_shared<std::atomic<bool>>(false);
  auto thread =
      std::make_unique<Thread>(std::move(name), [is_over, body = std::move(body)]() mutable {
        std::move(body)();
        // What it holds goes here, not when it is joined.
        body = nullptr;
        is_over->store(true, std::memory_order_release);
      });
  entries_.push_back({std::move(is_over), std::move(thread)});
  return true;
}

void ThreadGroup::Stop() {
  std::vector<Entry> entries;
  {
    absl::MutexLock lock(&mu_);
    is_stopped_ = true;
    entries.swap(entries_);
  }
  for (Entry& entry : entries) entry.thread->Join();
}

}  // namespace ferry
