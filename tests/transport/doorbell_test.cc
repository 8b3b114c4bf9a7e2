// SPDX-License-Identifier: Apache-2.0
// When a bell is heard: by who sleeps, once; by who dozes, if somebody waits; by nobody else.
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

TEST_F(DoorbellTest, WhoIsAwakeIsLeftAlone) {
  bell_.Ring();
  bell_.Rouse();
  EXPECT_EQ(Rings(bell_), 0u);
  bell_.RingAnyway();
  EXPECT_EQ(Rings(bell_), 1u);
}

// The second to bring work finds it awake; when it sleeps again, the next is heard again.
TEST_F(DoorbellTest, WhoSleepsIsWokenOnceEachTime) {
  for (int i = 0; i < 2; ++i) {
    bell_.FallAsleep();
    bell_.Ring();
    bell_.Ring();
    bell_.Rouse();
    EXPECT_EQ(Rings(bell_), 1u);
  }
  bell_.FallAsleep();
  bell_.WakeUp();
  bell_.Ring();
  EXPECT_EQ(Rings(bell_), 0u);
}

TEST_F(DoorbellTest, WhoDozesIsRousedOnly) {
  bell_.Doze();
  EXPECT_TRUE(bell_.is_dozing());
  bell_.Ring();
  EXPECT_EQ(Rings(bell_), 0u);
  EXPECT_TRUE(bell_.is_dozing());
  bell_.Rouse();
  EXPECT_EQ(Rings(bell_), 1u);
  EXPECT_FALSE(bell_.is_dozing());
}

// Who has fallen asleep meanwhile must still hear the bell.
TEST_F(DoorbellTest, DozesOnlyIfAwake) {
  bell_.FallAsleep();
  bell_.DozeIfAwake();
  EXPECT_FALSE(bell_.is_dozing());
  bell_.Ring();
  EXPECT_EQ(Rings(bell_), 1u);
  bell_.DozeIfAwake();
  EXPECT_TRUE(bell_.is_dozing());
}

}  // namespace
}  // namespace ferry
