// SPDX-License-Identifier: Apache-2.0
// Ended threads are joined when the next one starts.
#include "base/thread_group.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace ferry {

bool ThreadGroup::Run(std::string name, absl::AnyInvocable<void() &&> body) {
  std::vector<Entry> over;
  absl::MutexLock lock(&mu_);
  if (is_stopped_) return false;
  const auto first_over = std::partition(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return !entry.is_over->HasBeenNotified();
  });
  over.assign(std::make_move_iterator(first_over), std::make_move_iterator(entries_.end()));
  entries_.erase(first_over, entries_.end());
  auto is_over = std::make_shared<absl::Notification>();
  auto thread = std::make_unique<Thread>(name, [is_over, body = std::move(body)]() mutable {
    std::move(body)();
    // Destroys what it captured here, not at join.
    body = nullptr;
    is_over->Notify();
  });
  entries_.push_back({std::move(name), std::move(is_over), std::move(thread)});
  return true;
}

std::vector<std::string> ThreadGroup::StopWithin(absl::Duration timeout) {
  std::vector<Entry> entries;
  {
    absl::MutexLock lock(&mu_);
    is_stopped_ = true;
    entries.swap(entries_);
  }
  const absl::Time deadline = SteadyClock().Now() + timeout;
  std::vector<std::string> stuck;
  for (Entry& entry : entries) {
    if (entry.is_over->WaitForNotificationWithTimeout(deadline - SteadyClock().Now())) continue;
    stuck.push_back(entry.name);
    entry.thread->Detach();
  }
  return stuck;
}

}  // namespace ferry
