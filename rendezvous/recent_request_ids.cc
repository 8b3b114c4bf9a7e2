// SPDX-License-Identifier: Apache-2.0
// A ring of ids and its index.
#include "rendezvous/recent_request_ids.h"

#include "absl/strings/str_cat.h"

namespace ferry {

absl::Status RecentRequestIds::TrackUnique(int64_t request_id, absl::string_view method,
                                           uint64_t* turn) {
  if (request_id == 0) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  if (!seen_.emplace(request_id, next_turn_).second) {
    return absl::AbortedError(
        absl::StrCat("The same ", method, " request was received twice. The request id is ",
                     request_id, "; a client that retries needs the response cache"));
  }
  if (turn != nullptr) *turn = next_turn_;
  int64_t& slot = ring_[next_turn_++ % ring_.size()];
  if (slot != 0) seen_.erase(slot);
  slot = request_id;
  return absl::OkStatus();
}

bool RecentRequestIds::Contains(int64_t request_id) const {
  absl::MutexLock lock(&mu_);
  return seen_.contains(request_id);
}

void RecentRequestIds::Forget(int64_t request_id, uint64_t turn) {
  absl::MutexLock lock(&mu_);
  const auto found = seen_.find(request_id);
  if (found == seen_.end() || found->second != turn) return;
  // Clear its slot: when the ring wraps around to it, it would otherwise erase the newer entry of
  // the same id.
  ring_[turn % ring_.size()] = 0;
  seen_.erase(found);
}

}  // namespace ferry
