// SPDX-License-Identifier: Apache-2.0
// A queue of callbacks.
#include "tensorflow/worker/collectives/async_fifo_lock.h"

#include <algorithm>

namespace ferry::worker {

AsyncFifoLock::AtHead AsyncFifoLock::TakeNews() {
  if (entries_.empty()) return nullptr;
  return std::exchange(entries_.front().at_head, nullptr);
}

AsyncFifoLock::Ticket AsyncFifoLock::Enter(AtHead at_head) {
  AtHead news;
  Ticket ticket = 0;
  {
    absl::MutexLock lock(&mu_);
    ticket = ++last_;
    entries_.push_back({ticket, std::move(at_head)});
    if (entries_.size() == 1) news = TakeNews();
  }
  if (news) std::move(news)();
  return ticket;
}

bool AsyncFifoLock::Leave(Ticket ticket) {
  AtHead news;
  AtHead dropped;
  {
    absl::MutexLock lock(&mu_);
    const auto found = std::find_if(entries_.begin(), entries_.end(), [ticket](const Entry& entry) {
      return entry.ticket == ticket;
    });
    if (found == entries_.end()) return false;
    const bool was_first = found == entries_.begin();
    dropped = std::move(found->at_head);
    entries_.erase(found);
    if (was_first) news = TakeNews();
  }
  if (news) std::move(news)();
  return static_cast<bool>(dropped);
}

size_t AsyncFifoLock::size() const {
  absl::MutexLock lock(&mu_);
  return entries_.size();
}

}  // namespace ferry::worker
