// SPDX-License-Identifier: Apache-2.0
// How long a lane's messages take, measured with a clock that is moved by hand.
#include "rendezvous/peer/lane_ping.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "rendezvous/peer/lane_protocol.h"
#include "tests/rendezvous/keeping_lane.h"

namespace ferry {
namespace {

class LanePingTest : public ::testing::Test {
 protected:
  // Answers the last PING after `taken`.
  absl::Status Answer(absl::Duration taken) {
    clock_.Advance(taken);
    return ping_.OnPong(lane_, *DecodeId(lane_.bodies.back()));
  }
  PathCost Cost(const SeenCosts& costs) const {
    PathCost cost = {absl::Microseconds(1), 1e9};
    costs.Apply(0, /*is_as_fast_as_lane=*/true, clock_.Now(), cost);
    return cost;
  }

  FakeClock clock_;
  LanePing ping_{clock_, 1};
  KeepingLane lane_{{1, 1001}};
};

TEST_F(LanePingTest, TheFastestOfARoundCounts) {
  const auto incoming = std::make_shared<SeenCosts>(1);
  ping_.set_incoming(incoming);
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types, (std::vector{LaneMessage::kPing}));
  for (const int us : {80, 12, 9, 30}) {
    EXPECT_EQ(Cost(*ping_.costs()).latency_basis, CostBasis::kAssumed);
    EXPECT_TRUE(Answer(absl::Microseconds(us)).ok());
  }
  EXPECT_EQ(lane_.types.size(), 4u);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost(*ping_.costs()).latency), 4.5, 1e-6);
  EXPECT_EQ(Cost(*ping_.costs()).latency_basis, CostBasis::kSeen);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost(*incoming).latency), 4.5, 1e-6);
}

TEST_F(LanePingTest, RoundsAreSeldomAndOneAtATime) {
  ping_.Refresh(lane_, clock_.Now());
  clock_.Advance(absl::Minutes(1));
  // A peer that hangs is not asked more and more.
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types.size(), 1u);
  for (int i = 0; i < LanePing::kPings; ++i) EXPECT_TRUE(Answer(absl::Microseconds(1)).ok());
  EXPECT_EQ(lane_.types.size(), 4u);
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types.size(), 5u) << "the last round began a minute ago";
  for (int i = 0; i < LanePing::kPings; ++i) EXPECT_TRUE(Answer(absl::Microseconds(1)).ok());
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types.size(), 8u);
  clock_.Advance(LanePing::kPause);
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types.size(), 9u);
}

TEST_F(LanePingTest, APingThatCannotBeSentEndsItsRoundAlone) {
  lane_.refusal = absl::ResourceExhaustedError("the queue is full");
  ping_.Refresh(lane_, clock_.Now());
  lane_.refusal = absl::OkStatus();
  clock_.Advance(LanePing::kPause);
  ping_.Refresh(lane_, clock_.Now());
  ASSERT_EQ(lane_.types.size(), 1u);
  // And in the middle of a round.
  lane_.refusal = absl::ResourceExhaustedError("the queue is full");
  EXPECT_TRUE(Answer(absl::Microseconds(1)).ok());
  lane_.refusal = absl::OkStatus();
  clock_.Advance(LanePing::kPause);
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types.size(), 2u);
}

TEST_F(LanePingTest, WhatCannotBeSentHoldsUpNoLaterRound) {
  lane_.refusal = absl::ResourceExhaustedError("the queue is full");
  ping_.Refresh(lane_, clock_.Now());
  lane_.refusal = absl::OkStatus();
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types.size(), 0u) << "it is too early for another";
  clock_.Advance(LanePing::kPause);
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types.size(), 1u);
  for (int i = 0; i < LanePing::kPings; ++i) EXPECT_TRUE(Answer(absl::Microseconds(8)).ok());
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost(*ping_.costs()).latency), 4, 1e-6);
}

TEST_F(LanePingTest, WhatIsNeverAnsweredIsGivenUpAndMayStillBeAnsweredLate) {
  ping_.Refresh(lane_, clock_.Now());
  const uint64_t lost = *DecodeId(lane_.bodies.back());
  clock_.Advance(LanePing::kGivenUp);
  ping_.Refresh(lane_, clock_.Now());
  EXPECT_EQ(lane_.types.size(), 2u);
  EXPECT_TRUE(ping_.OnPong(lane_, lost).ok());
  EXPECT_EQ(lane_.types.size(), 2u) << "nothing follows from a late answer";
  for (int i = 0; i < LanePing::kPings; ++i) EXPECT_TRUE(Answer(absl::Microseconds(8)).ok());
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost(*ping_.costs()).latency), 4, 1e-6);
  EXPECT_TRUE(absl::IsInvalidArgument(ping_.OnPong(lane_, 0)));
}

TEST_F(LanePingTest, AnswersToWhatWasNotAskedAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(ping_.OnPong(lane_, 1)));
  ping_.Refresh(lane_, clock_.Now());
  const uint64_t id = *DecodeId(lane_.bodies.back());
  EXPECT_TRUE(absl::IsInvalidArgument(ping_.OnPong(lane_, id + 1)));
  EXPECT_TRUE(ping_.OnPong(lane_, id).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ping_.OnPong(lane_, id)));
}

}  // namespace
}  // namespace ferry
