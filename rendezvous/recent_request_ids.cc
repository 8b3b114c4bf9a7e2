// SPDX-License-Identifier: Apache-2.0
// A ring and a set over it.
#include "rendezvous/recent_request_ids.h"

#include "absl/strings/str_cat.h"

namespace ferry {

absl::Status RecentRequestIds::TrackUnique(int64_t request_id, absl::string_view method) {
  if (request_id == 0) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  if (!seen_.insert(request_id).second) {
    return absl::AbortedError(
        absl::StrCat("The same ", method, " request was received twice. The request id is ",
                     request_id, "; a client that retries needs the response cache"));
  }
  int64_t& slot = ring_[next_];
  next_ = (next_ + 1) % ring_.size();
  if (slot != 0) seen_.erase(slot);
  slot = request_id;
  return absl::OkStatus();
}

bool RecentRequestIds::Contains(int64_t request_id) const {
  absl::MutexLock lock(&mu_);
  return seen_.contains(request_id);
}

void RecentRequestIds::Forget(int64_t request_id) {
  // Its slot stays: should the id come again, it is dropped when the older slot's turn comes.
  absl::MutexLock lock(&mu_);
  seen_.erase(request_id);
}

}  // namespace ferry
