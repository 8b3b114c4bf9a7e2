// SPDX-License-Identifier: Apache-2.0
// Accounting, pausing, and the choice of connections to close.
#include "coord/tcpstore/tcp_store_budget.h"

#include <algorithm>
#include <utility>

namespace ferry::coord {

void TcpStoreBudget::Update(TcpStoreClient id, size_t held_bytes, uint64_t moved_bytes,
                            uint64_t requests, Phase phase) {
  if (held_bytes <= kUncountedBytes) return Remove(id);
  Client& client = clients_[id];
  held_bytes_ += held_bytes - client.held_bytes;
  client.held_bytes = held_bytes;
  client.moved_bytes = moved_bytes;
  client.phase = phase;
  // Its turn ends with the request, even if the next one has begun.
  if (std::exchange(client.requests, requests) != requests && receiver_ == id) {
    receiver_ = std::nullopt;
    has_advanced_ = true;
  }
}

void TcpStoreBudget::Remove(TcpStoreClient id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  held_bytes_ -= found->second.held_bytes;
  if (found->second.is_paused) --paused_count_;
  clients_.erase(found);
  if (receiver_ == id) {
    receiver_ = std::nullopt;
    has_advanced_ = true;
  }
}

bool TcpStoreBudget::MayReceive(TcpStoreClient id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return true;
  Client& client = found->second;
  if (client.is_paused) return false;
  if (!is_scarce() || receiver_ == id) return true;
  if (!receiver_.has_value() && paused_count_ == 0 && !is_full()) {
    receiver_ = id;
    return true;
  }
  client.is_paused = true;
  ++paused_count_;
  queue_.push_back(id);
  return false;
}

void TcpStoreBudget::Resume(TcpStoreClient id, Client& client,
                            std::vector<TcpStoreClient>& resumed) {
  client.is_paused = false;
  --paused_count_;
  resumed.push_back(id);
}

std::vector<TcpStoreClient> TcpStoreBudget::TakeResumed() {
  std::vector<TcpStoreClient> resumed;
  while (!queue_.empty() && (!is_scarce() || (!receiver_.has_value() && !is_full()))) {
    const TcpStoreClient id = queue_.front();
    queue_.pop_front();
    const auto found = clients_.find(id);
    if (found == clients_.end() || !found->second.is_paused) continue;
    if (is_scarce()) receiver_ = id;
    Resume(id, found->second, resumed);
  }
  if (!is_scarce()) receiver_ = std::nullopt;
  return resumed;
}

std::vector<TcpStoreBudget::Closed> TcpStoreBudget::EndPeriod() {
  const bool is_stuck = is_scarce() && paused_count_ > 0 && !has_advanced_;
  std::vector<Closed> closed;
  for (auto& [id, client] : clients_) {
    const uint64_t moved = client.moved_bytes - client.moved_bytes_before;
    // A paused client cannot send, but it can read its replies.
    const bool is_free = !client.is_paused || client.phase == Phase::kReading;
    const bool is_stalled = client.is_old && is_free && moved < kMinBytesPerPeriod;
    // A wait transfers nothing, so it has no progress to judge it by: any may be closed, but only
    // if the budget stays full for a whole period.
    const bool may_close = client.phase == Phase::kWaiting ? was_full_ && is_full()
                                                           : is_stalled && (is_stuck || is_full());
    if (may_close) {
      closed.push_back({id, client.held_bytes, client.phase});
    }
    client.moved_bytes_before = client.moved_bytes;
    client.is_old = is_free;
  }
  has_advanced_ = false;
  std::sort(closed.begin(), closed.end(), [](const Closed& a, const Closed& b) {
    if ((a.phase == Phase::kWaiting) != (b.phase == Phase::kWaiting)) {
      return b.phase == Phase::kWaiting;
    }
    return a.held_bytes > b.held_bytes;
  });
  size_t left = held_bytes_;
  const auto enough = std::find_if(closed.begin(), closed.end(), [&](const Closed& each) {
    if (left < max_bytes_ / 2) return true;
    left -= each.held_bytes;
    return false;
  });
  closed.erase(enough, closed.end());
  was_full_ = left >= max_bytes_ - max_bytes_ / 4;
  return closed;
}

}  // namespace ferry::coord
