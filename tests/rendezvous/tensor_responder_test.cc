// SPDX-License-Identifier: Apache-2.0
// Consumers that ask again, decline, cancel or name what is not theirs: what the producer keeps.
#include <string>

#include <gtest/gtest.h>

#include "tests/rendezvous/tensor_responder_fixture.h"

namespace ferry {
namespace {

class TensorResponderFrames : public TensorResponderTest {
 protected:
  TensorResponderFrames() {
    channel_->keeps_pings = false;
    // A transport of copies, which may be requested again.
    transports_.clear();
    transports_.push_back(MakeFaultyTransport(state_, "copies", false));
    Open(/*sends_seals=*/false);
    channel_->keeps_pings = false;
  }
  // Too large for a transfer descriptor: it is lent.
  void Lend(const std::string& name) {
    TransferEngine(name, DataType::kInt32, 100'000, /*may_decline=*/false);
  }
  absl::Status Request(const RendezvousKey& key) {
    return Hear([&](ControlChannel& channel) {
      return SendRequest(channel, {++id_, kStep, false, key.text()});
    });
  }
  RefusalMessage LastRefusal() {
    EXPECT_EQ(channel_->types.back(), ControlMessage::kRefusal);
    return *DecodeRefusal(channel_->bodies.back());
  }
};

// The sender keeps what it has lent until Release: a try that failed would keep its memory until
// the control channel ends.
TEST_F(TensorResponderFrames, AskedAgain_WhatTheFirstTryLentIsReleased) {
  Lend("edge");
  ASSERT_EQ(state_->lent.size(), 1u);
  const uint64_t first = state_->lent.begin()->first;
  const auto again = [this](ControlChannel& channel) {
    return SendAgain(channel, {id_, absl::AbortedError("not ready")});
  };
  ASSERT_TRUE(Hear(again).ok());
  ASSERT_EQ(state_->lent.size(), 1u);
  EXPECT_NE(state_->lent.begin()->first, first);
  EXPECT_EQ(channel_->types.back(), ControlMessage::kTicket);
  EXPECT_TRUE(Hear([this](ControlChannel& channel) {
                return SendId(channel, ControlMessage::kDone, id_);
              }).ok());
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(NonEmptyTables(server_->InnerTableSizes()), "");
}

// A tensor that can never be brought is given up after a bounded number of tries, with nothing
// kept.
TEST_F(TensorResponderFrames, AskedAgainForEver_IsLostWithItsReason) {
  exchange_.policy.require = "copies";
  Lend("edge");
  const auto again = [this](ControlChannel& channel) {
    return SendAgain(channel, {id_, absl::AbortedError("not ready")});
  };
  int tries = 0;
  while (channel_->types.back() == ControlMessage::kTicket && tries < 100) {
    ASSERT_TRUE(Hear(again).ok());
    ++tries;
  }
  EXPECT_EQ(tries, 8);
  EXPECT_EQ(LastRefusal().status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(step_->lost().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(NonEmptyTables(server_->InnerTableSizes()), "");
}

// A rogue peer could mark values of other nodes as lost, and honest steps would end in errors.
TEST_F(TensorResponderFrames, DeclinedWithAKeyOfAnotherNode_EndsTheLaneAndLosesNothing) {
  const absl::Status why = absl::InvalidArgumentError("does not fit");
  const RendezvousKey foreign = KeyOf("edge", kProducer.incarnation, /*consumer=*/3);
  EXPECT_EQ(Hear([&](ControlChannel& channel) {
              return SendDeclined(channel, {77, why, kStep, foreign.text()});
            }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(step_->lost().ok()) << step_->lost();
  const RendezvousKey own = KeyOf("edge");
  EXPECT_TRUE(Hear([&](ControlChannel& channel) {
                return SendDeclined(channel, {77, why, kStep, own.text()});
              }).ok());
  EXPECT_EQ(step_->lost().code(), absl::StatusCode::kInvalidArgument);
}

// Its key names the producer's incarnation: another incarnation has no such value, and the request
// would wait forever.
TEST_F(TensorResponderFrames, RequestForAnotherIncarnation_IsRefusedAtOnceWithAborted) {
  ASSERT_TRUE(Request(KeyOf("edge", kProducer.incarnation + 1)).ok());
  ASSERT_FALSE(channel_->types.empty());
  EXPECT_EQ(LastRefusal().status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(NonEmptyTables(server_->InnerTableSizes()), "");
}

TEST_F(TensorResponderFrames, RequestIdInUse_EndsTheLane) {
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  --id_;
  EXPECT_EQ(Request(KeyOf("other")).code(), absl::StatusCode::kInvalidArgument);
  // Also while its value is lent.
  Lend("lent");
  --id_;
  EXPECT_EQ(Request(KeyOf("other")).code(), absl::StatusCode::kInvalidArgument);
}

// A later value must go to another receiver, and not to a forgotten request.
TEST_F(TensorResponderFrames, Cancelled_IsRefusedAndTheValueStays) {
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  EXPECT_TRUE(Hear([this](ControlChannel& channel) {
                return SendId(channel, ControlMessage::kCancel, id_);
              }).ok());
  EXPECT_EQ(LastRefusal().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(NonEmptyTables(server_->InnerTableSizes()), "");
  ASSERT_TRUE(step_->Send(KeyOf("edge"), *Tensor::Allocate(DataType::kInt32, Shape())).ok());
  const size_t frames = channel_->types.size();
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  ASSERT_EQ(channel_->types.size(), frames + 1);
  EXPECT_EQ(channel_->types.back(), ControlMessage::kTicket);
  // Cancelling an unknown id has no effect.
  EXPECT_TRUE(Hear([](ControlChannel& channel) {
                return SendId(channel, ControlMessage::kCancel, 999);
              }).ok());
  EXPECT_EQ(channel_->types.size(), frames + 1);
}

// A value that was lent, and not taken yet, is lost when the control channel ends; a step must not
// close as if it had arrived.
TEST_F(TensorResponderFrames, LaneEndsWhileAValueIsLent_ItIsNotedAsLostAndGivenBack) {
  Lend("edge");
  ASSERT_TRUE(Request(KeyOf("waits")).ok());
  EXPECT_EQ(server_->unfinished(), 1u);
  server_->OnClosed(absl::UnavailableError("the peer is gone"));
  EXPECT_EQ(step_->lost().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_->unfinished(), 0u);
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(NonEmptyTables(server_->InnerTableSizes()), "");
}

}  // namespace
}  // namespace ferry
