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
  EXPECT_EQ(step_->operations().count(), 0u) << "it is the receiver's for as long as it likes";
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

// Whoever closes a step waits for nothing else.
TEST_F(LaneFlushTest, FlushedStep_CountsUntilThePongComesOrTheLaneEnds) {
  OutstandingOperations& operations = step_->operations();
  Exchange("buffer", DataType::kInt32, 2, /*may_decline=*/true);
  EXPECT_EQ(operations.count(), 0u);
  ASSERT_TRUE(server_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 1u);
  EXPECT_TRUE(server_->OnFlushed(*DecodeId(lane_->bodies.back())).ok());
  EXPECT_EQ(operations.count(), 0u);
  EXPECT_FALSE(server_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 0u) << "it has been heard";
  Exchange("second", DataType::kInt32, 2, /*may_decline=*/true);
  ASSERT_TRUE(server_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 1u);
  Open(/*sends_seals=*/false);
  EXPECT_EQ(operations.count(), 0u);
  Exchange("third", DataType::kInt32, 2, /*may_decline=*/true);
  ASSERT_TRUE(server_->StartFlush(kStep, StepOperation(operations)));
  Exchange("fourth", DataType::kInt32, 2, /*may_decline=*/true);
  lane_->refusal = absl::ResourceExhaustedError("its queue is full");
  EXPECT_FALSE(server_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 0u) << "a PING could not be sent";
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
