// SPDX-License-Identifier: Apache-2.0
// The steady clock and the fake one.
#include "base/clock.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(SteadyClock, NeverGoesBack) {
  absl::Time last = SteadyClock().Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = SteadyClock().Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(SteadyClock, IsOneClock) { EXPECT_EQ(&SteadyClock(), &SteadyClock()); }

TEST(SteadyClock, CoarseNanos_AreOfTheSameClock) {
  const absl::Time before = SteadyClock().Now();
  const absl::Time coarse = absl::FromUnixNanos(SteadyClock().CoarseNanos());
  EXPECT_GT(coarse, before - absl::Seconds(10));
  EXPECT_LE(coarse, SteadyClock().Now());
}

TEST(FakeClock, CoarseNanos_AreThoseOfNow) {
  FakeClock clock;
  clock.Advance(absl::Nanoseconds(1'500'000'001));
  EXPECT_EQ(absl::FromUnixNanos(clock.CoarseNanos()), clock.Now());
}

TEST(FakeClock, StandsStillUntilItIsAdvanced) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Seconds(30));
  EXPECT_EQ(clock.Now() - start, absl::Seconds(30));
}

TEST(FakeClock, CanGoBack) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  clock.Advance(absl::Seconds(-5));
  EXPECT_EQ(start - clock.Now(), absl::Seconds(5));
}

}  // namespace
}  // namespace ferry
