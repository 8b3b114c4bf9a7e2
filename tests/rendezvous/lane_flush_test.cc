// SPDX-License-Identifier: Apache-2.0
// For which answers whoever closes a step asks whether they were heard; and by which way they go.
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "rendezvous/lane_server.h"
#include "tests/rendezvous/keeping_lane.h"
#include "tests/rendezvous/lane_world.h"

namespace ferry {
namespace {

class LaneFlushTest : public ::testing::Test {
 protected:
  LaneFlushTest() : manager_(clock_, fetcher_) {
    exchange_.self.peer = kProducer;
    exchange_.manager = &manager_;
    exchange_.transports = &transports_;
    transports_.push_back(MakeFaultyTransport(state_, "views", true));
    step_ = *manager_.Find(kStep);
    EXPECT_TRUE(step_->Initialize({.job = "worker", .replica = 0, .task = kProducer.node_id}).ok());
    Open(/*sends_seals=*/false);
  }
  ~LaneFlushTest() override { server_->OnClosed(absl::UnavailableError("over")); }

  void Open(bool sends_seals) {
    if (server_ != nullptr) server_->OnClosed(absl::UnavailableError("over"));
    Endpoint consumer;
    consumer.peer = kConsumer;
    server_ = std::make_shared<LaneServer>(exchange_, consumer, sends_seals, "",
                                           std::make_shared<LanePing>(clock_, transports_.size()));
    lane_ = std::make_shared<KeepingLane>(kConsumer);
    server_->OnOpen(lane_);
  }
  // A value that is asked for, and sent or dead.
  void Exchange(const std::string& name, DataType dtype, int64_t elements, bool may_decline,
                bool is_dead = false) {
    const RendezvousKey key = *RendezvousKey::Parse(
        RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                            "/job:worker/replica:0/task:2/device:CPU:0", name));
    KeepingLane asker(kProducer);
    ASSERT_TRUE(SendRequest(asker, {++id_, kStep, may_decline, key.text()}).ok());
    ASSERT_TRUE(server_->OnFrame(static_cast<uint16_t>(asker.types[0]), asker.bodies[0], {}).ok());
    Tensor tensor;
    if (!is_dead) {
      const Shape shape = *Shape::Create({elements});
      tensor = dtype == DataType::kString ? *Tensor::OfStrings(shape, {"a", "b"})
                                          : *Tensor::Allocate(dtype, shape);
    }
    ASSERT_TRUE(step_->Send(key, tensor, is_dead).ok());
  }
  // And that a PING goes out for it.
  std::optional<uint64_t> StartFlush() {
    const size_t frames = lane_->types.size();
    const std::optional<uint64_t> flush = server_->StartFlush(kStep);
    EXPECT_EQ(lane_->types.size(), frames + (flush ? 1 : 0));
    return flush;
  }
  bool MustAsk() {
    const std::optional<uint64_t> flush = StartFlush();
    if (!flush) return false;
    EXPECT_FALSE(server_->IsFlushed(*flush));
    EXPECT_TRUE(server_->OnFlushed(*DecodeId(lane_->bodies.back())).ok());
    EXPECT_TRUE(server_->IsFlushed(*flush));
    return true;
  }

  FakeClock clock_;
  NoFetcher fetcher_;
  RendezvousManager manager_;
  std::shared_ptr<FaultyTransportState> state_ =
      std::make_shared<FaultyTransportState>(1, TransportFaults{});
  TransportList transports_;
  LaneExchange exchange_;
  std::shared_ptr<RemoteRendezvous> step_;
  std::shared_ptr<LaneServer> server_;
  std::shared_ptr<KeepingLane> lane_;
  uint64_t id_ = 0;
};

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

using LaneOfferTest = LaneFlushTest;

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
