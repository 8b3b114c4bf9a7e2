// SPDX-License-Identifier: Apache-2.0
// Which answers are flushed with a PING when a step is closed; and which path they take.
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tests/rendezvous/tensor_responder_fixture.h"

namespace ferry {
namespace {

using FlushTest = TensorResponderTest;

TEST_F(FlushTest, ValuesThatCannotBeRejectedNeedNoPing) {
  Transfer("nothing to fit", DataType::kInt32, 2, /*may_reject=*/false);
  EXPECT_FALSE(MustAsk());
  Transfer("dead", DataType::kInt32, 0, /*may_reject=*/true, /*is_dead=*/true);
  EXPECT_FALSE(MustAsk());
}

TEST_F(FlushTest, ValuesThatMayNotFitNeedAPing) {
  Transfer("buffer", DataType::kInt32, 2, /*may_reject=*/true);
  EXPECT_TRUE(MustAsk());
  EXPECT_FALSE(MustAsk()) << "it has been heard";
}

TEST_F(FlushTest, ValuesReadOnArrivalNeedAPing) {
  Transfer("text", DataType::kString, 2, /*may_reject=*/false);
  EXPECT_TRUE(MustAsk());
  Open(/*sends_checksums=*/true);
  Transfer("checksum", DataType::kInt32, 2, /*may_reject=*/false);
  EXPECT_TRUE(MustAsk());
}

// Its receiver may find that it cannot be had.
TEST_F(FlushTest, ViewsNeedAPing) {
  Transfer("view", DataType::kInt32, 100'000, /*may_reject=*/false);
  EXPECT_EQ(step_->operations().count(), 0u) << "it is the receiver's for as long as it likes";
  EXPECT_TRUE(MustAsk());
}

TEST_F(FlushTest, PingThatCannotBeSent_EndsTheWait) {
  Transfer("first", DataType::kInt32, 2, /*may_reject=*/true);
  const std::optional<uint64_t> flush = StartFlush();
  ASSERT_TRUE(flush);
  Transfer("second", DataType::kInt32, 2, /*may_reject=*/true);
  channel_->refusal = absl::ResourceExhaustedError("its queue is full");
  EXPECT_FALSE(StartFlush());
  EXPECT_TRUE(responder_->IsFlushed(*flush));
  channel_->refusal = absl::OkStatus();
  EXPECT_TRUE(MustAsk());
}

// Closing a step waits for nothing else.
TEST_F(FlushTest, FlushedStep_CountsUntilThePongComesOrTheChannelEnds) {
  OutstandingOperations& operations = step_->operations();
  Transfer("buffer", DataType::kInt32, 2, /*may_reject=*/true);
  EXPECT_EQ(operations.count(), 0u);
  ASSERT_TRUE(responder_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 1u);
  EXPECT_TRUE(responder_->OnFlushed(*DecodeId(channel_->bodies.back())).ok());
  EXPECT_EQ(operations.count(), 0u);
  EXPECT_FALSE(responder_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 0u) << "it has been heard";
  Transfer("second", DataType::kInt32, 2, /*may_reject=*/true);
  ASSERT_TRUE(responder_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 1u);
  Open(/*sends_checksums=*/false);
  EXPECT_EQ(operations.count(), 0u);
  Transfer("third", DataType::kInt32, 2, /*may_reject=*/true);
  ASSERT_TRUE(responder_->StartFlush(kStep, StepOperation(operations)));
  Transfer("fourth", DataType::kInt32, 2, /*may_reject=*/true);
  channel_->refusal = absl::ResourceExhaustedError("its queue is full");
  EXPECT_FALSE(responder_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 0u) << "a PING could not be sent";
}

using ExposeTest = TensorResponderTest;

// The path of a value is selected first, and the reason for having none only then: the answers may
// differ.
TEST_F(ExposeTest, PathThatOpensInBetween_IsUsed) {
  channel_->keeps_pings = false;
  state_->refused_costs = 1;
  Transfer("late", DataType::kInt32, 100'000, /*may_reject=*/false);
  ASSERT_EQ(channel_->types.size(), 1u);
  EXPECT_EQ(channel_->types[0], PeerMessageType::kReadyToSend);
  state_->refused_costs = 2;
  Transfer("never", DataType::kInt32, 100'000, /*may_reject=*/false);
  ASSERT_EQ(channel_->types.size(), 2u);
  ASSERT_EQ(channel_->types[1], PeerMessageType::kError);
  const absl::StatusOr<ErrorMessage> refusal = DecodeError(channel_->bodies[1]);
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_EQ(refusal->status.code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ferry
