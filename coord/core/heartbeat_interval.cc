// SPDX-License-Identifier: Apache-2.0
// Estimates the interval from the gaps between heartbeats.
#include "coord/core/heartbeat_interval.h"

#include <algorithm>

namespace ferry::coord {

void HeartbeatInterval::Beat(absl::Time now) {
  if (beats_per_timeout_ == 0) return;
  const absl::Duration gap = now - last_;
  last_ = now;
  if (gap < kShortestGap) return;
  gaps_[gaps_seen_++ % kGaps] = gap;
}

absl::Duration HeartbeatInterval::interval() const {
  return *std::max_element(gaps_.begin(), gaps_.end());
}

}  // namespace ferry::coord
