// SPDX-License-Identifier: Apache-2.0
// LogLimiter: how many lines are written, and that the others are counted.
#include "base/log_limiter.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(LogLimiter, LinesOverTheLimit_AreCountedUntilThePeriodEnds) {
  FakeClock clock;
  LogLimiter limiter(clock, /*lines=*/2, absl::Seconds(10));
  EXPECT_TRUE(limiter.Allow());
  EXPECT_TRUE(limiter.Allow());
  EXPECT_FALSE(limiter.Allow());
  EXPECT_FALSE(limiter.Allow());
  EXPECT_TRUE(limiter.has_left_out());
  clock.Advance(absl::Seconds(9));
  EXPECT_FALSE(limiter.Allow());
  EXPECT_EQ(limiter.TakeLeftOut(), 0u);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(limiter.TakeLeftOut(), 3u);
  EXPECT_EQ(limiter.TakeLeftOut(), 0u);
  EXPECT_FALSE(limiter.has_left_out());
}

TEST(LogLimiter, NextPeriod_BeginsWithALine) {
  FakeClock clock;
  LogLimiter limiter(clock, /*lines=*/1, absl::Seconds(10));
  EXPECT_TRUE(limiter.Allow());
  EXPECT_FALSE(limiter.Allow());
  clock.Advance(absl::Seconds(15));
  EXPECT_TRUE(limiter.Allow());
  clock.Advance(absl::Seconds(9));
  EXPECT_FALSE(limiter.Allow());
  // Those of the period before are not lost.
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(limiter.TakeLeftOut(), 2u);
}

}  // namespace
}  // namespace ferry
