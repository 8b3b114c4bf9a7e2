// SPDX-License-Identifier: Apache-2.0
// Consumers of producers that do not keep to the protocol, and of callers in the wrong moment.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/rendezvous/keeping_lane.h"
#include "tests/rendezvous/lane_world.h"

namespace ferry {
namespace {

class LaneClientTest : public ::testing::Test {
 protected:
  LaneClientTest() {
    transports_.push_back(MakeFaultyTransport(state_, "copies", false));
    exchange_.self.peer = kConsumer;
    exchange_.transports = &transports_;
    Endpoint producer;
    producer.peer = kProducer;
    client_ = std::make_shared<LaneClient>(exchange_, producer);
  }
  ~LaneClientTest() override { client_->OnClosed(absl::UnavailableError("over")); }

  std::shared_ptr<RemoteFetch> Request() {
    const RendezvousKey key = *RendezvousKey::Parse(
        RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                            "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
    return client_->Request(kStep, key, {}, [this](const absl::Status& status, const Received&) {
      ++ended_;
      status_ = status;
    });
  }
  // A u8[8] as the producer would send it.
  absl::Status Ticket(uint64_t id, uint8_t transport = 0, const std::string& body = "12345678") {
    KeepingLane lane(kProducer);
    TicketMessage ticket;
    ticket.id = id;
    ticket.transport = transport;
    ticket.header = {DataType::kUint8, *Shape::Create({8}), 8};
    ticket.body = body;
    EXPECT_TRUE(SendTicket(lane, ticket, {}).ok());
    return client_->OnFrame(static_cast<uint16_t>(LaneMessage::kTicket), lane.bodies[0], {});
  }
  absl::Status Refusal(uint64_t id) {
    KeepingLane lane(kProducer);
    EXPECT_TRUE(SendRefusal(lane, {id, absl::CancelledError("cancelled")}).ok());
    return client_->OnFrame(static_cast<uint16_t>(LaneMessage::kRefusal), lane.bodies[0], {});
  }

  std::shared_ptr<FaultyTransportState> state_ =
      std::make_shared<FaultyTransportState>(1, TransportFaults{});
  TransportList transports_;
  LaneExchange exchange_;
  std::shared_ptr<LaneClient> client_;
  std::shared_ptr<KeepingLane> lane_ = std::make_shared<KeepingLane>(kProducer);
  int ended_ = 0;
  absl::Status status_;
};

// The producer would keep the request, and give it a value that is meant for somebody else.
TEST_F(LaneClientTest, CancelsWhatIsCancelledWhileItIsBeingSent) {
  const std::shared_ptr<RemoteFetch> fetch = Request();
  lane_->on_send = [&fetch](LaneMessage type) {
    if (type == LaneMessage::kRequest) fetch->Cancel();
  };
  client_->OnOpen(lane_);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(lane_->types, (std::vector{LaneMessage::kRequest, LaneMessage::kCancel}));
}

TEST_F(LaneClientTest, AskingIsNotCalledOffBeforeItHasBegun) {
  Request()->Cancel();
  client_->OnOpen(lane_);
  EXPECT_TRUE(lane_->types.empty());
}

// It would give back the lease of a view that somebody looks at.
TEST_F(LaneClientTest, ASecondTicketIsTheEndOfTheLane) {
  client_->OnOpen(lane_);
  Request();
  EXPECT_TRUE(Ticket(1).ok());
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(Ticket(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ticket(2).code(), absl::StatusCode::kInvalidArgument);
}

// A peer that does not check what it sends: the tensor is refused, and the lane stays open.
TEST_F(LaneClientTest, BooleansThatAreNeither0Nor1_AreRefusedAndTheLaneStays) {
  client_->OnOpen(lane_);
  for (const char* const body : {"\0\1\2\1", "\0\1\0\1"}) {
    const uint64_t id = static_cast<uint64_t>(ended_ + 1);
    Request();
    KeepingLane lane(kProducer);
    TicketMessage ticket;
    ticket.id = id;
    ticket.header = {DataType::kBool, *Shape::Create({4}), 4};
    ticket.body = {body, 4};
    ASSERT_TRUE(SendTicket(lane, ticket, {}).ok());
    EXPECT_TRUE(
        client_->OnFrame(static_cast<uint16_t>(LaneMessage::kTicket), lane.bodies[0], {}).ok());
    EXPECT_EQ(ended_, static_cast<int>(id));
    if (id == 2) break;
    EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status_.message().find("sent by inline is invalid: element 2 of bool[4] is 2"),
              std::string::npos)
        << status_;
  }
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_FALSE(client_->has_ended());
}

// The receiver would be told while its buffer is written to.
TEST_F(LaneClientTest, NothingIsSaidOfATensorThatIsOnItsWay) {
  client_->OnOpen(lane_);
  Request();
  // Never to be completed.
  state_->faults.never = 1000;
  state_->lent.emplace(1, *Tensor::Allocate(DataType::kUint8, *Shape::Create({8})));
  const std::string body =
      std::string(1, '\1') + std::string(7, '\0') + std::string(1, '\xFE') + std::string(7, '\xFF');
  EXPECT_TRUE(Ticket(1, 1, body).ok());
  EXPECT_EQ(ended_, 0);
  EXPECT_EQ(Refusal(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ticket(1, 1, body).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ended_, 0);
}

TEST_F(LaneClientTest, ACancelledRequestIsAnsweredOnceAndNotHeardOf) {
  client_->OnOpen(lane_);
  Request()->Cancel();
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(Refusal(1).ok());
  EXPECT_EQ(Refusal(1).code(), absl::StatusCode::kInvalidArgument);
  // Its ticket was faster.
  Request()->Cancel();
  EXPECT_TRUE(Ticket(2).ok());
  EXPECT_EQ(ended_, 2);
  EXPECT_EQ(Ticket(2).code(), absl::StatusCode::kInvalidArgument);
}

// Where it ends the lane, too: the sender of a view would take that for taken.
TEST_F(LaneClientTest, ThatItWasNotTakenIsTheLastWord) {
  client_->OnOpen(lane_);
  Request();
  EXPECT_TRUE(Ticket(1, 1, "nonsense").ok());
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(lane_->types.back(), LaneMessage::kDeclined);
  EXPECT_EQ(lane_->refusal.code(), absl::StatusCode::kInvalidArgument);
}

// A receiver may leave the job as soon as it gets the error; its producer would count the value as
// received.
TEST_F(LaneClientTest, TicketDoesNotFit_DeclinedIsSentBeforeTheReceiverIsTold) {
  client_->OnOpen(lane_);
  const RendezvousKey key = *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
  RecvArgs args;
  args.destination = *Tensor::Allocate(DataType::kDouble, *Shape::Create({8}));
  LaneMessage last = LaneMessage::kRequest;
  client_->Request(kStep, key, args, [&](const absl::Status& status, const Received&) {
    status_ = status;
    last = lane_->types.back();
  });
  EXPECT_TRUE(Ticket(1, 1, std::string(16, '\0')).ok());
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(last, LaneMessage::kDeclined);
}

}  // namespace
}  // namespace ferry
