// SPDX-License-Identifier: Apache-2.0
// For which answers whoever closes a step asks whether they were heard; and by which way they go.
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tests/rendezvous/lane_server_fixture.h"

namespace ferry {
namespace {

using LaneFlushTest = LaneServerTest;

TEST_F(LaneFlushTest, NotForWhatNobodyCanDecline) {
  Exchange("nothing to fit", DataType::kInt32, 2, /*may_decline=*/false);
  EXPECT_FALSE(MustAsk());
  Exchange("dead", DataType::kInt32, 0, /*may_decline=*/true, /*is_dead=*/true);
  EXPECT_FALSE(MustAsk());
}

TEST_F(LaneFlushTest, ForWhatMayNotFit) {
  Exchange("buffer", DataType::kInt32, 2, /*may_decline=*/true);
  EXPECT_TRUE(MustAsk());
  EXPECT_FALSE(MustAsk()) << "it has been heard";
}

TEST_F(LaneFlushTest, ForWhatIsReadWhenItIsThere) {
  Exchange("text", DataType::kString, 2, /*may_decline=*/false);
  EXPECT_TRUE(MustAsk());
  Open(/*sends_seals=*/true);
  Exchange("checksum", DataType::kInt32, 2, /*may_decline=*/false);
  EXPECT_TRUE(MustAsk());
}

// Its receiver may find that it cannot be had.
TEST_F(LaneFlushTest, ForViews) {
  Exchange("view", DataType::kInt32, 100'000, /*may_decline=*/false);
  EXPECT_TRUE(MustAsk());
}

TEST_F(LaneFlushTest, WhoeverWaitsForAPingThatCannotBeSentWaitsNoMore) {
  Exchange("first", DataType::kInt32, 2, /*may_decline=*/true);
  const std::optional<uint64_t> flush = StartFlush();
  ASSERT_TRUE(flush);
  Exchange("second", DataType::kInt32, 2, /*may_decline=*/true);
  lane_->refusal = absl::ResourceExhaustedError("its queue is full");
  EXPECT_FALSE(StartFlush());
  EXPECT_TRUE(server_->IsFlushed(*flush));
  lane_->refusal = absl::OkStatus();
  EXPECT_TRUE(MustAsk());
}

using LaneOfferTest = LaneServerTest;

// Which way a value takes is asked first, and why none only then: it may be another answer.
TEST_F(LaneOfferTest, AWayThatOpensInBetweenIsTaken) {
  lane_->keeps_pings = false;
  state_->refused_costs = 1;
  Exchange("late", DataType::kInt32, 100'000, /*may_decline=*/false);
  ASSERT_EQ(lane_->types.size(), 1u);
  EXPECT_EQ(lane_->types[0], LaneMessage::kTicket);
  state_->refused_costs = 2;
  Exchange("never", DataType::kInt32, 100'000, /*may_decline=*/false);
  ASSERT_EQ(lane_->types.size(), 2u);
  ASSERT_EQ(lane_->types[1], LaneMessage::kRefusal);
  const absl::StatusOr<RefusalMessage> refusal = DecodeRefusal(lane_->bodies[1]);
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_EQ(refusal->status.code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ferry
