// SPDX-License-Identifier: Apache-2.0
// The table of lanes, where a peer refuses every attempt, and where a lane is opened while the
// former one is still ending.
#include "rendezvous/peer/lane_table.h"

#include <memory>

#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"

#include "tests/rendezvous/fake_connector.h"
#include "tests/rendezvous/keeping_lane.h"
#include "tests/rendezvous/lane_exchange_fixture.h"
#include "tests/rendezvous/lane_world.h"

namespace ferry {
namespace {

class LaneTableTest : public LaneExchangeTest {
 protected:
  LaneTableTest() {
    // The peer, whose node id is lower, decides between two lanes.
    exchange_.self.peer = kConsumer;
    exchange_.manager = &manager_;
    exchange_.transports = &transports_;
    peer_.peer = kProducer;
    table_ = std::make_shared<LaneTable>(exchange_);
    table_->set_connector(&connector_);
  }
  ~LaneTableTest() override { table_->Close(absl::CancelledError("over")); }

  // The link of the only attempt, which is connected now.
  std::shared_ptr<LaneHandler> Connect() {
    if (connector_.attempts.size() != 1) return nullptr;
    const auto link = connector_.Take(connector_.attempts.begin()->first);
    lane_ = std::make_shared<KeepingLane>(kProducer);
    link->OnOpen(lane_);
    return link;
  }
  // A frame from the peer, as `send` makes it.
  static absl::Status Hear(LaneHandler& link, absl::FunctionRef<absl::Status(Lane&)> send) {
    KeepingLane producer(kConsumer);
    EXPECT_TRUE(send(producer).ok());
    return link.OnFrame(static_cast<uint16_t>(producer.types[0]), producer.bodies[0], {});
  }

  LaneExchange exchange_;
  FakeConnector connector_;
  Endpoint peer_;
  std::shared_ptr<LaneTable> table_;
  std::shared_ptr<KeepingLane> lane_;
};

// A peer that says that there is another lane, though none ever comes: those who wait for the lane
// have no other deadline.
TEST_F(LaneTableTest, PeerThatRefusesEveryAttempt_IsGivenUpAfterTheTimeout) {
  const std::shared_ptr<LaneClient> client = *table_->Open(peer_);
  const absl::Time start = connector_.Now();
  const absl::Time give_up = start + 3 * exchange_.connect_timeout;
  int attempts = 0;
  while (!client->has_ended() && connector_.Now() < give_up) {
    if (const auto link = Connect()) {
      ++attempts;
      const absl::Status refused = Hear(*link, [](Lane& lane) {
        return SendRefusal(lane, {0, absl::AlreadyExistsError("there is another lane")});
      });
      ASSERT_FALSE(refused.ok());
      link->OnClosed(refused);
    }
    connector_.Advance(absl::Milliseconds(1));
    while (connector_.Step()) continue;
  }
  EXPECT_TRUE(client->has_ended());
  EXPECT_GE(connector_.Now() - start, exchange_.connect_timeout);
  EXPECT_GT(attempts, 2);
  EXPECT_LT(attempts, 100);
  EXPECT_EQ(table_->lane_count(), 0u);
}

// The former lane's end comes late, and concerns that lane alone: forgotten, the new one would
// stand in the way of a third.
TEST_F(LaneTableTest, LaneOpenedWhileTheFormerOneEnds_IsTheOneThatIsFound) {
  const std::shared_ptr<LaneClient> former = *table_->Open(peer_);
  std::shared_ptr<LaneHandler> link = Connect();
  ASSERT_NE(link, nullptr);
  ASSERT_TRUE(Hear(*link, [](Lane& lane) { return SendHello(lane, {}); }).ok());
  const absl::Status gone = absl::UnavailableError("node 1 was given up by the test");
  table_->Forget(kProducer.node_id, gone);
  ASSERT_TRUE(former->has_ended());
  const std::shared_ptr<LaneClient> next = *table_->Open(peer_);
  ASSERT_NE(next, former);
  link->OnClosed(gone);
  link.reset();
  EXPECT_EQ(*table_->Find(kProducer), next);
  EXPECT_EQ(table_->lane_count(), 1u);
}

}  // namespace
}  // namespace ferry
