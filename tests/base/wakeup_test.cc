// SPDX-License-Identifier: Apache-2.0
// Sleeping until a time, and being woken.
#include "base/wakeup.h"

#include <atomic>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/thread.h"

namespace ferry {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(Wakeup, SleepsUntilTheDeadline) {
  Wakeup wakeup;
  const absl::Time deadline = SteadyClock().Now() + absl::Milliseconds(5);
  while (SteadyClock().Now() < deadline) wakeup.WaitUntil(wakeup.turn(), deadline);
  wakeup.WaitUntil(wakeup.turn(), deadline);
  wakeup.WaitUntil(wakeup.turn(), absl::InfinitePast());
}

TEST(Wakeup, EarlyWakeIsNotLost) {
  Wakeup wakeup;
  const uint32_t turn = wakeup.turn();
  wakeup.Wake();
  const absl::Time start = SteadyClock().Now();
  wakeup.WaitUntil(turn, absl::InfiniteFuture());
  EXPECT_LT(SteadyClock().Now() - start, kLong);
}

TEST(Wakeup, EndsASleepOnAnotherThread) {
  Wakeup wakeup;
  std::atomic<int> rounds{0};
  std::atomic<bool> is_over{false};
  Thread sleeper("sleeper", [&] {
    while (!is_over) {
      const uint32_t turn = wakeup.turn();
      ++rounds;
      if (!is_over) wakeup.WaitUntil(turn, absl::InfiniteFuture());
    }
  });
  for (int i = 1; i <= 1000; ++i) {
    const absl::Time start = SteadyClock().Now();
    while (rounds < i) ASSERT_LT(SteadyClock().Now() - start, kLong);
    wakeup.Wake();
  }
  is_over = true;
  wakeup.Wake();
  sleeper.Join();
}

}  // namespace
}  // namespace ferry
