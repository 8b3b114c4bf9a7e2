// SPDX-License-Identifier: Apache-2.0
// How long a control channel's messages take, measured with a clock that is moved by hand.
#include "rendezvous/peer/latency_probe.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "rendezvous/peer/peer_protocol.h"
#include "tests/rendezvous/recording_control_channel.h"

namespace ferry {
namespace {

class LatencyProbeTest : public ::testing::Test {
 protected:
  // Answers the last PING after `taken`.
  absl::Status Answer(absl::Duration taken) {
    clock_.Advance(taken);
    return ping_.OnPong(channel_, *DecodeId(channel_.bodies.back()));
  }
  PathCost Cost(const PathCostEstimator& costs) const {
    PathCost cost = {absl::Microseconds(1), 1e9};
    costs.Apply(0, /*has_control_channel_latency=*/true, clock_.Now(), cost);
    return cost;
  }

  FakeClock clock_;
  LatencyProbe ping_{clock_, 1};
  RecordingControlChannel channel_{{1, 1001}};
};

TEST_F(LatencyProbeTest, FastestOfARoundCounts) {
  const auto incoming = std::make_shared<PathCostEstimator>(1);
  ping_.set_incoming(incoming);
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types, (std::vector{PeerMessageType::kPing}));
  for (const int us : {80, 12, 9, 30}) {
    EXPECT_EQ(Cost(*ping_.costs()).latency_basis, CostBasis::kAssumed);
    EXPECT_TRUE(Answer(absl::Microseconds(us)).ok());
  }
  EXPECT_EQ(channel_.types.size(), 4u);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost(*ping_.costs()).latency), 4.5, 1e-6);
  EXPECT_EQ(Cost(*ping_.costs()).latency_basis, CostBasis::kMeasured);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost(*incoming).latency), 4.5, 1e-6);
}

TEST_F(LatencyProbeTest, RoundsAreRareAndOneAtATime) {
  ping_.Refresh(channel_, clock_.Now());
  clock_.Advance(absl::Minutes(1));
  // A peer that hangs is not probed more and more.
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 1u);
  for (int i = 0; i < LatencyProbe::kPings; ++i) EXPECT_TRUE(Answer(absl::Microseconds(1)).ok());
  EXPECT_EQ(channel_.types.size(), 4u);
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 5u) << "the last round began a minute ago";
  for (int i = 0; i < LatencyProbe::kPings; ++i) EXPECT_TRUE(Answer(absl::Microseconds(1)).ok());
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 8u);
  clock_.Advance(LatencyProbe::kPause);
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 9u);
}

TEST_F(LatencyProbeTest, PingThatCannotBeSent_EndsOnlyItsRound) {
  channel_.refusal = absl::ResourceExhaustedError("the queue is full");
  ping_.Refresh(channel_, clock_.Now());
  channel_.refusal = absl::OkStatus();
  clock_.Advance(LatencyProbe::kPause);
  ping_.Refresh(channel_, clock_.Now());
  ASSERT_EQ(channel_.types.size(), 1u);
  // And in the middle of a round.
  channel_.refusal = absl::ResourceExhaustedError("the queue is full");
  EXPECT_TRUE(Answer(absl::Microseconds(1)).ok());
  channel_.refusal = absl::OkStatus();
  clock_.Advance(LatencyProbe::kPause);
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 2u);
}

TEST_F(LatencyProbeTest, FailedSend_DelaysNoLaterRound) {
  channel_.refusal = absl::ResourceExhaustedError("the queue is full");
  ping_.Refresh(channel_, clock_.Now());
  channel_.refusal = absl::OkStatus();
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 0u) << "it is too early for another";
  clock_.Advance(LatencyProbe::kPause);
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 1u);
  for (int i = 0; i < LatencyProbe::kPings; ++i) EXPECT_TRUE(Answer(absl::Microseconds(8)).ok());
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost(*ping_.costs()).latency), 4, 1e-6);
}

TEST_F(LatencyProbeTest, UnansweredRound_IsGivenUpAndMayBeAnsweredLate) {
  ping_.Refresh(channel_, clock_.Now());
  const uint64_t lost = *DecodeId(channel_.bodies.back());
  clock_.Advance(LatencyProbe::kGivenUp);
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 2u);
  EXPECT_TRUE(ping_.OnPong(channel_, lost).ok());
  EXPECT_EQ(channel_.types.size(), 2u) << "nothing follows from a late answer";
  for (int i = 0; i < LatencyProbe::kPings; ++i) EXPECT_TRUE(Answer(absl::Microseconds(8)).ok());
  EXPECT_NEAR(absl::ToDoubleMicroseconds(Cost(*ping_.costs()).latency), 4, 1e-6);
  EXPECT_TRUE(absl::IsInvalidArgument(ping_.OnPong(channel_, 0)));
}

TEST_F(LatencyProbeTest, UnrequestedAnswersAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(ping_.OnPong(channel_, 1)));
  ping_.Refresh(channel_, clock_.Now());
  const uint64_t id = *DecodeId(channel_.bodies.back());
  EXPECT_TRUE(absl::IsInvalidArgument(ping_.OnPong(channel_, id + 1)));
  EXPECT_TRUE(ping_.OnPong(channel_, id).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ping_.OnPong(channel_, id)));
}

// A round is given up exactly at its timeout; its late answers are not mistaken for those of the
// round that followed.
TEST_F(LatencyProbeTest, RoundIsGivenUp_AtItsTimeout) {
  ping_.Refresh(channel_, clock_.Now());
  clock_.Advance(LatencyProbe::kGivenUp - absl::Nanoseconds(1));
  ping_.Refresh(channel_, clock_.Now());
  EXPECT_EQ(channel_.types.size(), 1u);
  clock_.Advance(absl::Nanoseconds(1));
  ping_.Refresh(channel_, clock_.Now());
  ASSERT_EQ(channel_.types.size(), 2u);
  const uint64_t lost = *DecodeId(channel_.bodies[0]);
  const uint64_t next = *DecodeId(channel_.bodies[1]);
  EXPECT_GT(next, lost);
  EXPECT_LT(next, LatencyProbe::kForeignIds);
  for (int i = 0; i < 2 * LatencyProbe::kPings; ++i) EXPECT_TRUE(ping_.OnPong(channel_, lost).ok());
  EXPECT_EQ(channel_.types.size(), 2u);
  EXPECT_EQ(Cost(*ping_.costs()).latency_basis, CostBasis::kAssumed);
}

}  // namespace
}  // namespace ferry
