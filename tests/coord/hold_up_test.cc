// SPDX-License-Identifier: Apache-2.0
// How long the process did not run.
#include "coord/core/hold_up.h"

#include <gtest/gtest.h>

namespace ferry::coord {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(HoldUp, DeadlineFarAway_IsWaitedForInIntervals) {
  HoldUp hold_up;
  EXPECT_EQ(hold_up.BeginWait(kStart, kStart + absl::Seconds(100)), kStart + HoldUp::kTurn);
  EXPECT_EQ(hold_up.BeginWait(kStart, kStart + absl::Milliseconds(1)),
            kStart + absl::Milliseconds(1));
}

TEST(HoldUp, NoDeadline_WaitsWithoutEnd) {
  HoldUp hold_up;
  EXPECT_EQ(hold_up.BeginWait(kStart, absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(hold_up.EndWait(kStart + absl::Hours(5)), absl::ZeroDuration());
}

TEST(HoldUp, WaitEndsInTime_IsNone) {
  HoldUp hold_up;
  hold_up.BeginWait(kStart, kStart + absl::Seconds(100));
  EXPECT_EQ(hold_up.EndWait(kStart + absl::Milliseconds(1)), absl::ZeroDuration());
  EXPECT_EQ(hold_up.EndWait(kStart + HoldUp::kTurn + HoldUp::kTolerance), absl::ZeroDuration());
}

// The deadline is long after the stop begins: silence counts from the beginning of the interval,
// not from the deadline that was missed.
TEST(HoldUp, ProcessStopped_CountsFromTheLastInterval) {
  HoldUp hold_up;
  hold_up.BeginWait(kStart, kStart + absl::Seconds(5));
  EXPECT_EQ(hold_up.EndWait(kStart + absl::Seconds(8)), absl::Seconds(8));
}

TEST(HoldUp, ProcessStoppedShortly_CountsFromTheLastInterval) {
  HoldUp hold_up;
  hold_up.BeginWait(kStart, kStart + absl::Milliseconds(10));
  const absl::Duration late = absl::Milliseconds(10) + HoldUp::kTolerance + absl::Milliseconds(1);
  EXPECT_EQ(hold_up.EndWait(kStart + late), late);
}

}  // namespace
}  // namespace ferry::coord
