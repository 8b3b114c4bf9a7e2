// SPDX-License-Identifier: Apache-2.0
// RecentRequestIds: detects duplicate requests.
#ifndef FERRY_RENDEZVOUS_RECENT_REQUEST_IDS_H_
#define FERRY_RENDEZVOUS_RECENT_REQUEST_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace ferry {

// Thread-safe. Remembers the last `window` ids; clients draw them at random, so the reuse of an
// older one is a coincidence.
// Source: tensorflow/core/distributed_runtime/recent_request_ids.h.
class RecentRequestIds final {
 public:
  explicit RecentRequestIds(size_t window = 100'000) : ring_(window, 0) {}

  //   turn: receives the argument for Forget; may be null.
  //   Errors: ABORTED if the id was seen before; never for 0, which clients without ids send.
  absl::Status TrackUnique(int64_t request_id, absl::string_view method, uint64_t* turn = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_);

  // True if TrackUnique would reject it.
  bool Contains(int64_t request_id) const ABSL_LOCKS_EXCLUDED(mu_);
  // The request of that turn has failed. The same id may be used again, and is then remembered for
  // the full window; an id that was reused since keeps its newer entry.
  void Forget(int64_t request_id, uint64_t turn) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  // Turns are counted from 0, and occupy consecutive slots of the ring.
  uint64_t next_turn_ ABSL_GUARDED_BY(mu_) = 0;
  // 0 for an empty slot.
  std::vector<int64_t> ring_ ABSL_GUARDED_BY(mu_);
  // Each id of the ring, with its turn.
  absl::flat_hash_map<int64_t, uint64_t> seen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RECENT_REQUEST_IDS_H_
