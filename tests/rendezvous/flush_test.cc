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
  TransferEngine("nothing to fit", DataType::kInt32, 2, /*may_decline=*/false);
  EXPECT_FALSE(MustAsk());
  TransferEngine("dead", DataType::kInt32, 0, /*may_decline=*/true, /*is_dead=*/true);
  EXPECT_FALSE(MustAsk());
}

TEST_F(FlushTest, ValuesThatMayNotFitNeedAPing) {
  TransferEngine("buffer", DataType::kInt32, 2, /*may_decline=*/true);
  EXPECT_TRUE(MustAsk());
  EXPECT_FALSE(MustAsk()) << "it has been heard";
}

TEST_F(FlushTest, ValuesReadOnArrivalNeedAPing) {
  TransferEngine("text", DataType::kString, 2, /*may_decline=*/false);
  EXPECT_TRUE(MustAsk());
  Open(/*sends_seals=*/true);
  TransferEngine("checksum", DataType::kInt32, 2, /*may_decline=*/false);
  EXPECT_TRUE(MustAsk());
}

// Its receiver may find that it cannot be had.
TEST_F(FlushTest, ViewsNeedAPing) {
  TransferEngine("view", DataType::kInt32, 100'000, /*may_decline=*/false);
  EXPECT_EQ(step_->operations().count(), 0u) << "it is the receiver's for as long as it likes";
  EXPECT_TRUE(MustAsk());
}

TEST_F(FlushTest, PingThatCannotBeSent_EndsTheWait) {
  TransferEngine("first", DataType::kInt32, 2, /*may_decline=*/true);
  const std::optional<uint64_t> flush = StartFlush();
  ASSERT_TRUE(flush);
  TransferEngine("second", DataType::kInt32, 2, /*may_decline=*/true);
  channel_->refusal = absl::ResourceExhaustedError("its queue is full");
  EXPECT_FALSE(StartFlush());
  EXPECT_TRUE(server_->IsFlushed(*flush));
  channel_->refusal = absl::OkStatus();
  EXPECT_TRUE(MustAsk());
}

// Closing a step waits for nothing else.
TEST_F(FlushTest, FlushedStep_CountsUntilThePongComesOrTheChannelEnds) {
  OutstandingOperations& operations = step_->operations();
  TransferEngine("buffer", DataType::kInt32, 2, /*may_decline=*/true);
  EXPECT_EQ(operations.count(), 0u);
  ASSERT_TRUE(server_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 1u);
  EXPECT_TRUE(server_->OnFlushed(*DecodeId(channel_->bodies.back())).ok());
  EXPECT_EQ(operations.count(), 0u);
  EXPECT_FALSE(server_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 0u) << "it has been heard";
  TransferEngine("second", DataType::kInt32, 2, /*may_decline=*/true);
  ASSERT_TRUE(server_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 1u);
  Open(/*sends_seals=*/false);
  EXPECT_EQ(operations.count(), 0u);
  TransferEngine("third", DataType::kInt32, 2, /*may_decline=*/true);
  ASSERT_TRUE(server_->StartFlush(kStep, StepOperation(operations)));
  TransferEngine("fourth", DataType::kInt32, 2, /*may_decline=*/true);
  channel_->refusal = absl::ResourceExhaustedError("its queue is full");
  EXPECT_FALSE(server_->StartFlush(kStep, StepOperation(operations)));
  EXPECT_EQ(operations.count(), 0u) << "a PING could not be sent";
}

using ExposeTest = TensorResponderTest;

// The path of a value is selected first, and the reason for having none only then: the answers may
// differ.
TEST_F(ExposeTest, PathThatOpensInBetween_IsUsed) {
  channel_->keeps_pings = false;
  state_->refused_costs = 1;
  TransferEngine("late", DataType::kInt32, 100'000, /*may_decline=*/false);
  ASSERT_EQ(channel_->types.size(), 1u);
  EXPECT_EQ(channel_->types[0], ControlMessage::kTicket);
  state_->refused_costs = 2;
  TransferEngine("never", DataType::kInt32, 100'000, /*may_decline=*/false);
  ASSERT_EQ(channel_->types.size(), 2u);
  ASSERT_EQ(channel_->types[1], ControlMessage::kRefusal);
  const absl::StatusOr<RefusalMessage> refusal = DecodeRefusal(channel_->bodies[1]);
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_EQ(refusal->status.code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ferry
