// SPDX-License-Identifier: Apache-2.0
// Consumers that ask again, decline, cancel or name what is not theirs: what the producer keeps.
#include <string>

#include <gtest/gtest.h>

#include "tests/rendezvous/lane_server_fixture.h"

namespace ferry {
namespace {

class LaneServerFrames : public LaneServerTest {
 protected:
  LaneServerFrames() {
    lane_->keeps_pings = false;
    // A transport of copies, which may be requested again.
    transports_.clear();
    transports_.push_back(MakeFaultyTransport(state_, "copies", false));
    Open(/*sends_seals=*/false);
    lane_->keeps_pings = false;
  }
  // Too large for a ticket: it is lent.
  void Lend(const std::string& name) {
    Exchange(name, DataType::kInt32, 100'000, /*may_decline=*/false);
  }
  absl::Status Request(const RendezvousKey& key) {
    return Hear([&](Lane& lane) { return SendRequest(lane, {++id_, kStep, false, key.text()}); });
  }
  RefusalMessage LastRefusal() {
    EXPECT_EQ(lane_->types.back(), LaneMessage::kRefusal);
    return *DecodeRefusal(lane_->bodies.back());
  }
};

// The outlet keeps what it has lent until Release: a try that failed would keep its memory until
// the lane ends.
TEST_F(LaneServerFrames, AskedAgain_WhatTheFirstTryLentIsReleased) {
  Lend("edge");
  ASSERT_EQ(state_->lent.size(), 1u);
  const uint64_t first = state_->lent.begin()->first;
  const auto again = [this](Lane& lane) {
    return SendAgain(lane, {id_, absl::AbortedError("not ready")});
  };
  ASSERT_TRUE(Hear(again).ok());
  ASSERT_EQ(state_->lent.size(), 1u);
  EXPECT_NE(state_->lent.begin()->first, first);
  EXPECT_EQ(lane_->types.back(), LaneMessage::kTicket);
  EXPECT_TRUE(Hear([this](Lane& lane) { return SendId(lane, LaneMessage::kDone, id_); }).ok());
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(NonEmptyTables(server_->InnerTableSizes()), "");
}

// A tensor that can never be brought is given up after a bounded number of tries, with nothing
// kept.
TEST_F(LaneServerFrames, AskedAgainForEver_IsLostWithItsReason) {
  exchange_.policy.require = "copies";
  Lend("edge");
  const auto again = [this](Lane& lane) {
    return SendAgain(lane, {id_, absl::AbortedError("not ready")});
  };
  int tries = 0;
  while (lane_->types.back() == LaneMessage::kTicket && tries < 100) {
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
TEST_F(LaneServerFrames, DeclinedWithAKeyOfAnotherNode_EndsTheLaneAndLosesNothing) {
  const absl::Status why = absl::InvalidArgumentError("does not fit");
  const RendezvousKey foreign = KeyOf("edge", kProducer.incarnation, /*consumer=*/3);
  EXPECT_EQ(Hear([&](Lane& lane) {
              return SendDeclined(lane, {77, why, kStep, foreign.text()});
            }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(step_->lost().ok()) << step_->lost();
  const RendezvousKey own = KeyOf("edge");
  EXPECT_TRUE(Hear([&](Lane& lane) {
                return SendDeclined(lane, {77, why, kStep, own.text()});
              }).ok());
  EXPECT_EQ(step_->lost().code(), absl::StatusCode::kInvalidArgument);
}

// Its key names the producer's incarnation: another incarnation has no such value, and the request
// would wait forever.
TEST_F(LaneServerFrames, RequestForAnotherIncarnation_IsRefusedAtOnceWithAborted) {
  ASSERT_TRUE(Request(KeyOf("edge", kProducer.incarnation + 1)).ok());
  ASSERT_FALSE(lane_->types.empty());
  EXPECT_EQ(LastRefusal().status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(NonEmptyTables(server_->InnerTableSizes()), "");
}

TEST_F(LaneServerFrames, RequestIdInUse_EndsTheLane) {
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  --id_;
  EXPECT_EQ(Request(KeyOf("other")).code(), absl::StatusCode::kInvalidArgument);
  // Also while its value is lent.
  Lend("lent");
  --id_;
  EXPECT_EQ(Request(KeyOf("other")).code(), absl::StatusCode::kInvalidArgument);
}

// A later value must go to another receiver, and not to a forgotten request.
TEST_F(LaneServerFrames, Cancelled_IsRefusedAndTheValueStays) {
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  EXPECT_TRUE(Hear([this](Lane& lane) { return SendId(lane, LaneMessage::kCancel, id_); }).ok());
  EXPECT_EQ(LastRefusal().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(NonEmptyTables(server_->InnerTableSizes()), "");
  ASSERT_TRUE(step_->Send(KeyOf("edge"), *Tensor::Allocate(DataType::kInt32, Shape())).ok());
  const size_t frames = lane_->types.size();
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  ASSERT_EQ(lane_->types.size(), frames + 1);
  EXPECT_EQ(lane_->types.back(), LaneMessage::kTicket);
  // Cancelling an unknown id has no effect.
  EXPECT_TRUE(Hear([](Lane& lane) { return SendId(lane, LaneMessage::kCancel, 999); }).ok());
  EXPECT_EQ(lane_->types.size(), frames + 1);
}

// A value that was lent, and not taken yet, is lost when the lane ends; a step must not close as if
// it had arrived.
TEST_F(LaneServerFrames, LaneEndsWhileAValueIsLent_ItIsNotedAsLostAndGivenBack) {
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
