// SPDX-License-Identifier: Apache-2.0
// PauseDetector: measures how long a process was not running, from how late its waits end.
#ifndef FERRY_COORD_CORE_PAUSE_DETECTOR_H_
#define FERRY_COORD_CORE_PAUSE_DETECTOR_H_

#include "absl/time/time.h"

namespace ferry::coord {

// A process that was stopped (SIGSTOP, a suspended machine) or starved does not know when that
// began, only when it last ran. So it waits in short turns: the turn that ended late began at most
// kTurn before the process stopped. Not thread-safe.
class PauseDetector final {
 public:
  // The longest turn. Ten wake-ups in five seconds cost nothing measurable.
  static constexpr absl::Duration kTurn = absl::Milliseconds(500);
  // A wait that ends later than planned by more than this has stalled.
  static constexpr absl::Duration kTolerance = absl::Milliseconds(250);

  // Returns until when to wait at `now`, with no work before `deadline`: at most one turn, or
  // forever if the deadline is infinite, when nothing depends on the time.
  absl::Time BeginWait(absl::Time now, absl::Time deadline);
  // Ends the wait, at its end or earlier. Returns the time since its beginning if it ended late by
  // more than kTolerance, else zero.
  absl::Duration EndWait(absl::Time now) const;

 private:
  absl::Time begin_ = absl::InfinitePast();
  absl::Time planned_end_ = absl::InfiniteFuture();
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_PAUSE_DETECTOR_H_
