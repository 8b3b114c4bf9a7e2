// SPDX-License-Identifier: Apache-2.0
// Calls the members on their loops.
#include "coord/server/tcp_store_flow.h"

#include <utility>

namespace ferry::coord {

void TcpStoreFlow::Update(TcpStoreClient client, SocketLoop& loop,
                          std::weak_ptr<TcpStoreFlowMember> member, size_t held_bytes,
                          uint64_t moved_bytes, uint64_t requests, TcpStoreBudget::Phase phase) {
  absl::MutexLock lock(&mu_);
  counted_.try_emplace(client, Counted{&loop, std::move(member)});
  budget_.Update(client, held_bytes, moved_bytes, requests, phase);
  ResumeMembers();
}

void TcpStoreFlow::Remove(TcpStoreClient client) {
  absl::MutexLock lock(&mu_);
  counted_.erase(client);
  budget_.Remove(client);
  ResumeMembers();
}

bool TcpStoreFlow::MayReceive(TcpStoreClient client) {
  absl::MutexLock lock(&mu_);
  return budget_.MayReceive(client);
}

void TcpStoreFlow::ResumeMembers() {
  for (const TcpStoreClient client : budget_.TakeResumed()) {
    const auto found = counted_.find(client);
    if (found == counted_.end()) continue;
    found->second.loop->Post([weak = found->second.member] {
      if (const auto member = weak.lock(); member != nullptr) member->Resume();
    });
  }
}

void TcpStoreFlow::EndPeriod() {
  absl::MutexLock lock(&mu_);
  for (const TcpStoreBudget::Closed& closed : budget_.EndPeriod()) {
    const auto found = counted_.find(closed.client);
    if (found == counted_.end()) continue;
    found->second.loop->Post([weak = found->second.member, held_bytes = closed.held_bytes] {
      if (const auto member = weak.lock(); member != nullptr) member->CloseStalled(held_bytes);
    });
  }
}

TcpStoreFlow::ReplyCounts TcpStoreFlow::ShareReplyCounts(size_t thread, ReplyCounts counts) {
  absl::MutexLock lock(&mu_);
  ReplyCounts sums = counts;
  reply_counts_[thread] = std::move(counts);
  for (size_t other = 0; other < reply_counts_.size(); ++other) {
    if (other == thread || reply_counts_[other].empty()) continue;
    for (auto& [value, sum] : sums) {
      const auto found = reply_counts_[other].find(value);
      if (found != reply_counts_[other].end()) sum += found->second;
    }
  }
  return sums;
}

size_t TcpStoreFlow::held_bytes() const {
  absl::MutexLock lock(&mu_);
  return budget_.held_bytes();
}

}  // namespace ferry::coord
