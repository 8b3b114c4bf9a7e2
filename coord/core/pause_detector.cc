// SPDX-License-Identifier: Apache-2.0
// Compares the planned end of a wait with the actual one.
#include "coord/core/pause_detector.h"

#include <algorithm>

namespace ferry::coord {

absl::Time PauseDetector::BeginWait(absl::Time now, absl::Time deadline) {
  begin_ = now;
  planned_end_ = deadline == absl::InfiniteFuture() ? deadline : std::min(deadline, now + kTurn);
  return planned_end_;
}

absl::Duration PauseDetector::EndWait(absl::Time now) const {
  return now - planned_end_ > kTolerance ? now - begin_ : absl::ZeroDuration();
}

}  // namespace ferry::coord
