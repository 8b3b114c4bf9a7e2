// SPDX-License-Identifier: Apache-2.0
// When a notification wakes a reader: one that sleeps, once; one that polls, if a caller blocks; no
// other.
#include "net/doorbell.h"

#include <unistd.h>

#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

namespace ferry {
namespace {

// How often it has been rung since the last time.
uint64_t Rings(Doorbell& bell) {
  uint64_t rings = 0;
  return read(bell.event_fd(), &rings, sizeof(rings)) == sizeof(rings) ? rings : 0;
}

class DoorbellTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto bell = Doorbell::Create();
    ASSERT_TRUE(bell.ok()) << bell.status();
    bell_ = *std::move(bell);
  }

  Doorbell bell_;
};

TEST_F(DoorbellTest, AwakeReader_IsNotWoken) {
  bell_.Ring();
  bell_.Notify();
  EXPECT_EQ(Rings(bell_), 0u);
  bell_.RingAnyway();
  EXPECT_EQ(Rings(bell_), 1u);
}

// The second writer finds the reader awake; when it sleeps again, the next notification wakes it
// again.
TEST_F(DoorbellTest, SleepingReader_IsWokenOnceEachTime) {
  for (int i = 0; i < 2; ++i) {
    bell_.FallAsleep();
    bell_.Ring();
    bell_.Ring();
    bell_.Notify();
    EXPECT_EQ(Rings(bell_), 1u);
  }
  bell_.FallAsleep();
  bell_.WakeUp();
  bell_.Ring();
  EXPECT_EQ(Rings(bell_), 0u);
}

TEST_F(DoorbellTest, PollingReader_IsWokenByBlockingWritersOnly) {
  bell_.EnterPolling();
  EXPECT_TRUE(bell_.is_polling());
  bell_.Ring();
  EXPECT_EQ(Rings(bell_), 0u);
  EXPECT_TRUE(bell_.is_polling());
  bell_.Notify();
  EXPECT_EQ(Rings(bell_), 1u);
  EXPECT_FALSE(bell_.is_polling());
}

// A reader that has fallen asleep meanwhile must still be woken.
TEST_F(DoorbellTest, PollsOnlyIfAwake) {
  bell_.FallAsleep();
  bell_.EnterPollingIfAwake();
  EXPECT_FALSE(bell_.is_polling());
  bell_.Ring();
  EXPECT_EQ(Rings(bell_), 1u);
  bell_.EnterPollingIfAwake();
  EXPECT_TRUE(bell_.is_polling());
}

}  // namespace
}  // namespace ferry
