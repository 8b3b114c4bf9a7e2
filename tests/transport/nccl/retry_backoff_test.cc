// SPDX-License-Identifier: Apache-2.0
// The times between retries.
#include "transport/nccl/retry_backoff.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace ferry {
namespace {

TEST(RetryBackoff, EachFailureDoublesIt_UpToAMinute) {
  FakeClock clock;
  RetryBackoff retry;
  EXPECT_TRUE(retry.IsDue(clock.Now()));
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    retry.Failed(clock.Now());
    EXPECT_EQ(retry.Left(clock.Now()), absl::Seconds(seconds));
    clock.Advance(absl::Seconds(seconds) - absl::Nanoseconds(1));
    EXPECT_FALSE(retry.IsDue(clock.Now()));
    clock.Advance(absl::Nanoseconds(1));
    EXPECT_TRUE(retry.IsDue(clock.Now()));
  }
}

// Each transfer that asks for the communicator meanwhile fails too.
TEST(RetryBackoff, FailuresBeforeARetryIsDue_DoNotPutItOff) {
  FakeClock clock;
  RetryBackoff retry;
  retry.Failed(clock.Now());
  clock.Advance(absl::Milliseconds(400));
  retry.Failed(clock.Now());
  EXPECT_EQ(retry.Left(clock.Now()), absl::Milliseconds(600));
  clock.Advance(absl::Milliseconds(600));
  retry.Failed(clock.Now());
  EXPECT_EQ(retry.Left(clock.Now()), absl::Seconds(2));
}

TEST(RetryBackoff, SuccessStartsOver) {
  FakeClock clock;
  RetryBackoff retry;
  for (int i = 0; i < 3; ++i) {
    retry.Failed(clock.Now());
    clock.Advance(RetryBackoff::kLongest);
  }
  retry.Succeeded();
  EXPECT_TRUE(retry.IsDue(clock.Now()));
  retry.Failed(clock.Now());
  EXPECT_EQ(retry.Left(clock.Now()), RetryBackoff::kFirst);
}

}  // namespace
}  // namespace ferry
