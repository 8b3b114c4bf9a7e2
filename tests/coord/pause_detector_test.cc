// SPDX-License-Identifier: Apache-2.0
// How long the process did not run.
#include "coord/core/pause_detector.h"

#include <gtest/gtest.h>

namespace ferry::coord {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(PauseDetector, DeadlineFarAway_IsWaitedForInIntervals) {
  PauseDetector pause_detector;
  EXPECT_EQ(pause_detector.BeginWait(kStart, kStart + absl::Seconds(100)),
            kStart + PauseDetector::kTurn);
  EXPECT_EQ(pause_detector.BeginWait(kStart, kStart + absl::Milliseconds(1)),
            kStart + absl::Milliseconds(1));
}

TEST(PauseDetector, NoDeadline_WaitsWithoutEnd) {
  PauseDetector pause_detector;
  EXPECT_EQ(pause_detector.BeginWait(kStart, absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(pause_detector.EndWait(kStart + absl::Hours(5)), absl::ZeroDuration());
}

TEST(PauseDetector, WaitEndsInTime_IsNone) {
  PauseDetector pause_detector;
  pause_detector.BeginWait(kStart, kStart + absl::Seconds(100));
  EXPECT_EQ(pause_detector.EndWait(kStart + absl::Milliseconds(1)), absl::ZeroDuration());
  EXPECT_EQ(pause_detector.EndWait(kStart + PauseDetector::kTurn + PauseDetector::kTolerance),
            absl::ZeroDuration());
}

// The deadline is long after the stop begins: silence counts from the beginning of the interval,
// not from the deadline that was missed.
TEST(PauseDetector, ProcessStopped_CountsFromTheLastInterval) {
  PauseDetector pause_detector;
  pause_detector.BeginWait(kStart, kStart + absl::Seconds(5));
  EXPECT_EQ(pause_detector.EndWait(kStart + absl::Seconds(8)), absl::Seconds(8));
}

TEST(PauseDetector, ProcessStoppedShortly_CountsFromTheLastInterval) {
  PauseDetector pause_detector;
  pause_detector.BeginWait(kStart, kStart + absl::Milliseconds(10));
  const absl::Duration late =
      absl::Milliseconds(10) + PauseDetector::kTolerance + absl::Milliseconds(1);
  EXPECT_EQ(pause_detector.EndWait(kStart + late), late);
}

}  // namespace
}  // namespace ferry::coord
