// SPDX-License-Identifier: Apache-2.0
// Which answers a producer knows to be acknowledged.
#include "rendezvous/peer/ack_tracker.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

// Whether closing that step has to wait.
bool MustWait(AckTracker& answers, int64_t step_id) { return answers.Start(step_id).number > 0; }

TEST(AckTrackerTest, NothingSent_NothingToWaitFor) {
  AckTracker answers;
  EXPECT_FALSE(MustWait(answers, 0));
  EXPECT_FALSE(MustWait(answers, 1));
  answers.Count(7);
  EXPECT_FALSE(MustWait(answers, 0));
  EXPECT_FALSE(MustWait(answers, 1));
  EXPECT_TRUE(MustWait(answers, 7));
}

TEST(AckTrackerTest, OnePingAcknowledgesAllThatWasSentBefore) {
  AckTracker answers;
  answers.Count(0);
  answers.Count(1);
  answers.Count(0);
  const AckTracker::Flush first = answers.Start(0);
  EXPECT_EQ(first.number, 3u);
  EXPECT_TRUE(first.needs_ping);
  EXPECT_TRUE(first.is_awaited);
  const AckTracker::Flush second = answers.Start(1);
  EXPECT_FALSE(second.needs_ping) << "it is under way";
  EXPECT_FALSE(answers.IsOver(second.number));
  EXPECT_TRUE(answers.OnPong(3).ok());
  EXPECT_TRUE(answers.IsOver(first.number));
  EXPECT_TRUE(answers.IsOver(second.number));
  EXPECT_FALSE(MustWait(answers, 0));
  answers.Count(1);
  EXPECT_FALSE(MustWait(answers, 0));
  EXPECT_TRUE(answers.Start(1).needs_ping);
}

TEST(AckTrackerTest, ConcurrentStepsAreNotConfused) {
  AckTracker answers;
  for (int64_t round = 0; round < 2; ++round) {
    for (int64_t step = 0; step < 100; ++step) answers.Count(step);
  }
  EXPECT_TRUE(answers.Start(0).needs_ping);
  EXPECT_TRUE(answers.OnPong(200).ok());
  for (int64_t step = 0; step < 100; ++step) EXPECT_FALSE(MustWait(answers, step));
  for (int64_t step = 0; step < 100; ++step) answers.Count(step);
  EXPECT_TRUE(answers.Start(99).needs_ping);
  EXPECT_TRUE(answers.OnPong(300).ok());
  for (int64_t step = 0; step < 100; ++step) answers.Count(step);
  for (int64_t step = 0; step < 100; ++step) EXPECT_TRUE(MustWait(answers, step)) << step;
}

TEST(AckTrackerTest, SilentPeerIsWaitedForOnce) {
  AckTracker answers;
  answers.Count(1);
  answers.GiveUp(answers.Start(1).number);
  EXPECT_FALSE(answers.Start(1).is_awaited);
  answers.Count(2);
  const AckTracker::Flush flush = answers.Start(2);
  EXPECT_TRUE(flush.needs_ping);
  EXPECT_FALSE(flush.is_awaited);
  EXPECT_TRUE(answers.OnPong(1).ok());
  EXPECT_TRUE(answers.Start(2).is_awaited);
  // An acknowledgement at the last moment counts.
  EXPECT_TRUE(answers.OnPong(2).ok());
  answers.GiveUp(2);
  answers.Count(3);
  EXPECT_TRUE(answers.Start(3).is_awaited);
}

TEST(AckTrackerTest, LostPingIsSentAgain) {
  AckTracker answers;
  answers.Count(1);
  EXPECT_EQ(answers.Start(1).number, 1u);
  answers.Count(1);
  EXPECT_EQ(answers.Start(1).number, 2u);
  EXPECT_FALSE(answers.IsOver(2));
  answers.OnPingFailed(2);
  EXPECT_TRUE(answers.IsOver(2)) << "others wait for it too";
  // The one before it is still in flight.
  EXPECT_TRUE(answers.OnPong(1).ok());
  const AckTracker::Flush again = answers.Start(1);
  EXPECT_EQ(again.number, 2u);
  EXPECT_TRUE(again.needs_ping);
  EXPECT_FALSE(answers.IsOver(2));
  EXPECT_FALSE(answers.Start(1).needs_ping);
}

TEST(AckTrackerTest, UnrequestedAnswersAreRefused) {
  AckTracker answers;
  answers.Count(1);
  EXPECT_TRUE(absl::IsInvalidArgument(answers.OnPong(1)));
  answers.Start(1);
  EXPECT_TRUE(answers.OnPong(1).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(answers.OnPong(2)));
}

// An answer to an old ping must not acknowledge later sends, and one to a later ping acknowledges
// the earlier ones too.
TEST(AckTrackerTest, AnswersOutOfOrder_TheLargestCounts) {
  AckTracker answers;
  answers.Count(1);
  EXPECT_EQ(answers.Start(1).number, 1u);
  answers.Count(2);
  EXPECT_EQ(answers.Start(2).number, 2u);
  EXPECT_TRUE(answers.OnPong(2).ok());
  EXPECT_TRUE(answers.OnPong(1).ok());
  EXPECT_TRUE(answers.IsOver(2));
  EXPECT_EQ(answers.Start(1).number, 0u);
  EXPECT_EQ(answers.Start(2).number, 0u);
  answers.Count(1);
  EXPECT_FALSE(answers.IsOver(3));
  EXPECT_EQ(answers.Start(1).number, 3u);
}

}  // namespace
}  // namespace ferry
