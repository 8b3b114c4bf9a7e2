// SPDX-License-Identifier: Apache-2.0
// A control channel with repeated attempts: what each attempt keeps until it times out.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "rendezvous/peer/peer_connection_pool.h"
#include "tests/rendezvous/peer_world.h"
#include "tests/rendezvous/recording_control_channel.h"

namespace ferry {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);

class ConnectionRetry : public ::testing::Test {
 protected:
  ConnectionRetry() {
    context_.self.peer = kConsumer;
    context_.manager = &manager_;
    context_.transports = &transports_;
    context_.connect_timeout = kTimeout;
    pool_ = std::make_shared<PeerConnectionPool>(context_);
    pool_->set_connector(&connector_);
  }
  ~ConnectionRetry() override {
    pool_->Close(absl::CancelledError("this process is leaving"));
    while (connector_.Step()) continue;
    while (!connector_.attempts.empty()) {
      connector_.Fail(connector_.attempts.begin()->first,
                      absl::CancelledError("this process is leaving"));
    }
  }

  void Pass(absl::Duration by) {
    connector_.Advance(by);
    while (connector_.Step()) continue;
  }
  // The pending attempt has a connection now.
  std::pair<std::shared_ptr<ControlHandler>, std::shared_ptr<RecordingControlChannel>> Connect() {
    auto handler = connector_.Take(connector_.attempts.begin()->first);
    auto channel = std::make_shared<RecordingControlChannel>(kProducer);
    handler->OnOpen(channel);
    return {std::move(handler), std::move(channel)};
  }

  // The peer's answer.
  static std::string TurnedAway() {
    RecordingControlChannel channel(kConsumer);
    EXPECT_TRUE(
        SendError(channel, {0, absl::AlreadyExistsError("there is another connection with node 2")})
            .ok());
    return channel.bodies.back();
  }

  FakeClock clock_;
  NoFetcher no_fetcher_;
  RendezvousManager manager_{clock_, no_fetcher_};
  TransportList transports_;
  TransferContext context_;
  FakeConnector connector_;
  std::shared_ptr<PeerConnectionPool> pool_;
};

// The peer has another control channel with this process, for longer than usual, and refuses this
// one.
TEST_F(ConnectionRetry, RefusedAttempts_ShareATimer) {
  Endpoint producer;
  producer.peer = kProducer;
  producer.channels.tcp = {"somewhere:1"};
  ASSERT_TRUE(pool_->Open(producer).ok());
  size_t most = 0;
  for (int i = 0; i < 15; ++i) {
    ASSERT_EQ(connector_.attempts.size(), 1u) << "after " << i << " attempts";
    const auto [handler, channel] = Connect();
    handler->OnClosed(
        handler->OnFrame(static_cast<uint16_t>(PeerMessageType::kError), TurnedAway(), {}));
    most = std::max(most, connector_.timers());
    EXPECT_EQ(pool_->InnerTableSizes()["peers.pending_hellos"], 0u) << "after " << i << " attempts";
    Pass(absl::Milliseconds(500));
  }
  // The pause before the next one, and the wait for HELLO.
  EXPECT_LE(most, 2u);
}

TEST_F(ConnectionRetry, EachPeerHasItsFullTimeout) {
  Endpoint producer;
  producer.peer = kProducer;
  producer.channels.tcp = {"somewhere:1"};
  Endpoint other = producer;
  other.peer = {3, 1003};
  ASSERT_TRUE(pool_->Open(producer).ok());
  const auto [first, first_channel] = Connect();
  Pass(kTimeout / 2);
  ASSERT_TRUE(pool_->Open(other).ok());
  const auto [second, second_channel] = Connect();
  Pass(kTimeout / 2 - absl::Milliseconds(1));
  EXPECT_TRUE(first_channel->refusal.ok()) << first_channel->refusal;
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(first_channel->refusal.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(second_channel->refusal.ok()) << second_channel->refusal;
  first->OnClosed(first_channel->refusal);
  Pass(kTimeout / 2);
  EXPECT_EQ(second_channel->refusal.code(), absl::StatusCode::kDeadlineExceeded);
  second->OnClosed(second_channel->refusal);
  EXPECT_EQ(connector_.timers(), 0u);
}

// Peers connect and disconnect throughout the lifetime of this process.
TEST_F(ConnectionRetry, EndedChannels_AreNotKept) {
  for (int i = 0; i < 10; ++i) {
    const std::shared_ptr<ControlHandler> handler = pool_->Accept(kProducer);
    const auto channel = std::make_shared<RecordingControlChannel>(kProducer);
    handler->OnOpen(channel);
    RecordingControlChannel peer(kConsumer);
    ASSERT_TRUE(SendHello(peer, {}).ok());
    const absl::Status heard =
        handler->OnFrame(static_cast<uint16_t>(PeerMessageType::kHello), peer.bodies[0], {});
    ASSERT_TRUE(heard.ok()) << heard;
    EXPECT_EQ(pool_->Responders().size(), 1u);
    handler->OnClosed(absl::UnavailableError("the peer is gone"));
  }
  TableSizes sizes = pool_->InnerTableSizes();
  // The last one, until the next ends.
  EXPECT_LE(sizes["peers.ended"], 1u);
  EXPECT_EQ(NonEmptyTables(sizes, {"peers.last_connections", "peers.ended"}), "");
}

}  // namespace
}  // namespace ferry
