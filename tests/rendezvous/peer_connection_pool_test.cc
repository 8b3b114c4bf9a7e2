// SPDX-License-Identifier: Apache-2.0
// The table of control channels, where a peer refuses every attempt, and where a control channel is
// opened while the former one is still ending.
#include "rendezvous/peer/peer_connection_pool.h"

#include <memory>

#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"

#include "tests/rendezvous/fake_connector.h"
#include "tests/rendezvous/peer_world.h"
#include "tests/rendezvous/recording_control_channel.h"
#include "tests/rendezvous/transfer_context_fixture.h"

namespace ferry {
namespace {

class PeerConnectionPoolTest : public TransferContextTest {
 protected:
  PeerConnectionPoolTest() {
    // The peer, whose node id is lower, decides between two control channels.
    context_.self.peer = kConsumer;
    context_.manager = &manager_;
    context_.transports = &transports_;
    peer_.peer = kProducer;
    pool_ = std::make_shared<PeerConnectionPool>(context_);
    pool_->set_connector(&connector_);
  }
  ~PeerConnectionPoolTest() override {
    pool_->Close(absl::CancelledError("over"));
    // The ends of cancelled attempts.
    while (connector_.Step()) continue;
  }

  // The link of the only attempt, which is connected now.
  std::shared_ptr<ControlHandler> Connect() {
    if (connector_.attempts.size() != 1) return nullptr;
    const auto link = connector_.Take(connector_.attempts.begin()->first);
    channel_ = std::make_shared<RecordingControlChannel>(kProducer);
    link->OnOpen(channel_);
    return link;
  }
  // A frame from the peer, as `send` makes it.
  static absl::Status Hear(ControlHandler& link,
                           absl::FunctionRef<absl::Status(ControlChannel&)> send) {
    RecordingControlChannel producer(kConsumer);
    EXPECT_TRUE(send(producer).ok());
    return link.OnFrame(static_cast<uint16_t>(producer.types[0]), producer.bodies[0], {});
  }

  TransferContext context_;
  FakeConnector connector_;
  Endpoint peer_;
  std::shared_ptr<PeerConnectionPool> pool_;
  std::shared_ptr<RecordingControlChannel> channel_;
};

// A peer that reports another control channel, though none is ever opened: callers that wait for
// the control channel have no other deadline.
TEST_F(PeerConnectionPoolTest, PeerThatRefusesEveryAttempt_IsGivenUpAfterTheTimeout) {
  const std::shared_ptr<TensorRequester> requester = *pool_->Open(peer_);
  const absl::Time start = connector_.Now();
  const absl::Time give_up = start + 3 * context_.connect_timeout;
  int attempts = 0;
  while (!requester->has_ended() && connector_.Now() < give_up) {
    if (const auto link = Connect()) {
      ++attempts;
      const absl::Status refused = Hear(*link, [](ControlChannel& channel) {
        return SendError(channel, {0, absl::AlreadyExistsError("there is another connection")});
      });
      ASSERT_FALSE(refused.ok());
      link->OnClosed(refused);
    }
    connector_.Advance(absl::Milliseconds(1));
    while (connector_.Step()) continue;
  }
  EXPECT_TRUE(requester->has_ended());
  EXPECT_GE(connector_.Now() - start, context_.connect_timeout);
  EXPECT_GT(attempts, 2);
  EXPECT_LT(attempts, 100);
  EXPECT_EQ(pool_->connection_count(), 0u);
}

// The previous control channel's end comes late, and concerns that control channel alone: if the
// new one were forgotten, it would block a third.
TEST_F(PeerConnectionPoolTest, ChannelOpenedWhileThePreviousOneEnds_IsTheOneThatIsFound) {
  const std::shared_ptr<TensorRequester> former = *pool_->Open(peer_);
  std::shared_ptr<ControlHandler> link = Connect();
  ASSERT_NE(link, nullptr);
  ASSERT_TRUE(Hear(*link, [](ControlChannel& channel) { return SendHello(channel, {}); }).ok());
  const absl::Status gone = absl::UnavailableError("node 1 was given up by the test");
  pool_->Forget(kProducer.node_id, gone);
  ASSERT_TRUE(former->has_ended());
  const std::shared_ptr<TensorRequester> next = *pool_->Open(peer_);
  ASSERT_NE(next, former);
  link->OnClosed(gone);
  link.reset();
  EXPECT_EQ(*pool_->Find(kProducer), next);
  EXPECT_EQ(pool_->connection_count(), 1u);
}

// Nothing is sent before both have sent HELLO, and that is sent once.
TEST_F(PeerConnectionPoolTest, FramesBeforeHelloAndASecondOne_EndTheChannel) {
  const auto hello = [](ControlChannel& channel) { return SendHello(channel, {}); };
  const auto request = [](ControlChannel& channel) {
    return SendRequest(channel, {1, kStep, false, "key"});
  };
  const auto ping = [](ControlChannel& channel) {
    return SendId(channel, PeerMessageType::kPing, 1);
  };
  const auto refusal = [](ControlChannel& channel) {
    return SendError(channel, {0, absl::AlreadyExistsError("there is another connection")});
  };
  for (const bool is_after : {false, true}) {
    const std::shared_ptr<ControlHandler> link = pool_->Accept(kProducer);
    link->OnOpen(std::make_shared<RecordingControlChannel>(kProducer));
    if (is_after) {
      ASSERT_TRUE(Hear(*link, hello).ok());
      EXPECT_TRUE(Hear(*link, ping).ok());
      EXPECT_TRUE(Hear(*link, request).ok()) << "a key that is none is refused by itself";
      EXPECT_EQ(Hear(*link, hello).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(link->OnFrame(13, "", {}).code(), absl::StatusCode::kInvalidArgument);
    } else {
      EXPECT_EQ(Hear(*link, request).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(Hear(*link, ping).code(), absl::StatusCode::kInvalidArgument);
      // Only the side that has opened it may be refused because there is another.
      EXPECT_EQ(Hear(*link, refusal).code(), absl::StatusCode::kInvalidArgument);
    }
    link->OnClosed(absl::UnavailableError("over"));
  }
  EXPECT_EQ(pool_->InnerTableSizes()["peers.pending_hellos"], 0u);
}

// The path of the last control channel is a hint for that incarnation of the peer only.
TEST_F(PeerConnectionPoolTest, PathToAPeer_IsThatOfItsLastChannelInThatIncarnation) {
  EXPECT_EQ(pool_->ControlPathTo(peer_).descriptors_unavailable_reason, "they are on two machines");
  const std::shared_ptr<TensorRequester> requester = *pool_->Open(peer_);
  requester->set_descriptors_unavailable_reason("it came over TCP");
  EXPECT_EQ(pool_->ControlPathTo(peer_).descriptors_unavailable_reason, "it came over TCP");
  pool_->Forget(kProducer.node_id, absl::UnavailableError("node 1 was given up by the test"));
  while (connector_.Step()) continue;
  ASSERT_TRUE(requester->has_ended());
  EXPECT_EQ(pool_->connection_count(), 0u);
  EXPECT_EQ(pool_->ControlPathTo(peer_).descriptors_unavailable_reason, "it came over TCP");
  Endpoint restarted = peer_;
  ++restarted.peer.incarnation;
  EXPECT_EQ(pool_->ControlPathTo(restarted).descriptors_unavailable_reason,
            "they are on two machines");
}

// After Close it opens and accepts nothing more.
TEST_F(PeerConnectionPoolTest, Closed_NoChannelIsOpened) {
  const absl::Status why = absl::CancelledError("this process is leaving");
  pool_->Close(why);
  EXPECT_EQ(pool_->Open(peer_).status(), why);
  EXPECT_EQ(pool_->Find(kProducer).status(), why);
  EXPECT_EQ(pool_->Accept(kProducer), nullptr);
  pool_->Close(absl::InternalError("later"));
  EXPECT_EQ(pool_->Open(peer_).status(), why);
  EXPECT_TRUE(connector_.attempts.empty());
  EXPECT_EQ(pool_->connection_count(), 0u);
}

}  // namespace
}  // namespace ferry
