// SPDX-License-Identifier: Apache-2.0
// Frames of which one bit has changed, at either end of a lane that has checksums.
#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/lane_seal.h"
#include "tests/rendezvous/keeping_lane.h"
#include "tests/rendezvous/lane_world.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Frame {
  uint16_t type = 0;
  std::string body;
};

// What `send` sends first, with its seal.
Frame Sealed(const std::function<absl::Status(Lane&)>& send, bool is_sealed = true) {
  const auto kept = std::make_shared<KeepingLane>(kProducer);
  const std::shared_ptr<Lane> lane = is_sealed ? MakeSealingLane(kept) : kept;
  EXPECT_TRUE(send(*lane).ok());
  return {static_cast<uint16_t>(kept->types.at(0)), kept->bodies.at(0)};
}
void ForEachFlip(const Frame& frame, const std::function<void(const Frame&, size_t bit)>& visit) {
  for (size_t bit = 0; bit < 16 + frame.body.size() * 8; ++bit) {
    Frame flipped = frame;
    if (bit < 16) {
      flipped.type = static_cast<uint16_t>(flipped.type ^ (1u << bit));
    } else {
      char& byte = flipped.body[(bit - 16) / 8];
      byte = static_cast<char>(byte ^ (1 << (bit % 8)));
    }
    visit(flipped, bit);
  }
}

RendezvousKey Key() {
  return *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
}

class LaneSealTest : public ::testing::Test {
 protected:
  LaneSealTest() : manager_(clock_, fetcher_) {
    consumer_.self.peer = kConsumer;
    producer_.self.peer = kProducer;
    producer_.manager = &manager_;
    producer_.transports = consumer_.transports = &transports_;
    transports_.push_back(MakeFaultyTransport(state_, "copies", false));
    consumer_.checksum = true;
  }

  // A consumer that has asked, on a lane that is open.
  std::shared_ptr<LaneClient> Asking() {
    Endpoint endpoint;
    endpoint.peer = kProducer;
    auto client = std::make_shared<LaneClient>(consumer_, Hub(), endpoint);
    client->OnOpen(std::make_shared<KeepingLane>(kProducer));
    client->Request(kStep, Key(), {}, [this](const absl::Status& status, Received received) {
      ++ended_;
      status_ = status;
      received_ = std::move(received);
    });
    return client;
  }
  Frame Ticket(bool is_sealed = true) {
    TicketMessage ticket;
    ticket.id = 1;
    ticket.header = {DataType::kInt32, *Shape::Create({2, 1}), 8};
    ticket.body = "12345678";
    return Sealed([&](Lane& lane) { return SendTicket(lane, ticket, {}); }, is_sealed);
  }
  Frame Hello(bool is_sealed = true) {
    return Sealed([](Lane& lane) { return SendHello(lane, {"boot", "host"}); }, is_sealed);
  }
  Frame Request(bool is_sealed = true) {
    return Sealed(
        [](Lane& lane) {
          return SendRequest(lane, {1, kStep, Key().text()});
        },
        is_sealed);
  }

  FakeClock clock_;
  NoFetcher fetcher_;
  RendezvousManager manager_;
  std::shared_ptr<FaultyTransportState> state_ =
      std::make_shared<FaultyTransportState>(1, TransportFaults{});
  TransportList transports_;
  LaneExchange consumer_;
  LaneExchange producer_;
  int ended_ = 0;
  absl::Status status_;
  Received received_;
};

// A changed shape, id or type would hand the value to somebody as what it is not.
TEST_F(LaneSealTest, NoBitOfATicketIsBelieved) {
  const Frame ticket = Ticket();
  ForEachFlip(ticket, [&](const Frame& flipped, size_t bit) {
    ended_ = 0;
    const std::shared_ptr<LaneClient> client = Asking();
    const absl::Status status = client->OnFrame(flipped.type, flipped.body, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bit << ": " << status;
    EXPECT_EQ(ended_, 0) << bit;
    // As every lane does with what a handler does not take.
    client->OnClosed(status);
    EXPECT_EQ(ended_, 1);
    EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status_.message()), AllOf(HasSubstr("node 1"), HasSubstr("step 7"),
                                                      HasSubstr(Key().text()), HasSubstr("dmesg")));
  });
  const std::shared_ptr<LaneClient> client = Asking();
  EXPECT_TRUE(client->OnFrame(ticket.type, ticket.body, {}).ok());
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(ToString(received_.tensor.shape()), "[2,1]");
  client->OnClosed(absl::UnavailableError("over"));
}

// A changed key or step would give a value away that is meant for somebody else.
TEST_F(LaneSealTest, NoBitOfARequestIsBelieved) {
  const Frame hello = Hello();
  ForEachFlip(Request(), [&](const Frame& flipped, size_t bit) {
    auto server = std::make_shared<LaneServer>(producer_, kConsumer);
    const auto lane = std::make_shared<KeepingLane>(kConsumer);
    server->OnOpen(lane);
    ASSERT_TRUE(server->OnFrame(hello.type, hello.body, {}).ok());
    const absl::Status status = server->OnFrame(flipped.type, flipped.body, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bit << ": " << status;
    EXPECT_EQ(manager_.step_count(), 0u) << bit;
    server->OnClosed(status);
    // The consumer hears why.
    ASSERT_EQ(lane->bodies.size(), 1u);
    ended_ = 0;
    const std::shared_ptr<LaneClient> client = Asking();
    const absl::Status heard =
        client->OnFrame(static_cast<uint16_t>(lane->types[0]), lane->bodies[0], {});
    EXPECT_EQ(heard.code(), absl::StatusCode::kDataLoss) << heard;
    EXPECT_THAT(std::string(heard.message()), HasSubstr("node 1 ends its lane: a "));
    EXPECT_THAT(std::string(heard.message()), HasSubstr("from node 2"));
    client->OnClosed(heard);
  });
}

// Whether there are seals at all is said by one bit of the first frame.
TEST_F(LaneSealTest, NoBitOfTheFirstMessageIsBelieved) {
  ForEachFlip(Hello(), [&](const Frame& flipped, size_t bit) {
    auto server = std::make_shared<LaneServer>(producer_, kConsumer);
    server->OnOpen(std::make_shared<KeepingLane>(kConsumer));
    const absl::Status status = server->OnFrame(flipped.type, flipped.body, {});
    EXPECT_FALSE(status.ok()) << bit;
    server->OnClosed(status);
  });
}

TEST_F(LaneSealTest, AllFramesOfALaneHaveSealsOrNone) {
  for (const bool first : {false, true}) {
    auto server = std::make_shared<LaneServer>(producer_, kConsumer);
    server->OnOpen(std::make_shared<KeepingLane>(kConsumer));
    const Frame hello = Hello(first);
    EXPECT_TRUE(server->OnFrame(hello.type, hello.body, {}).ok());
    const Frame request = Request(!first);
    const absl::Status status = server->OnFrame(request.type, request.body, {});
    EXPECT_FALSE(status.ok());
    server->OnClosed(status);
  }
  const std::shared_ptr<LaneClient> client = Asking();
  const Frame ticket = Ticket(/*is_sealed=*/false);
  EXPECT_EQ(client->OnFrame(ticket.type, ticket.body, {}).code(), absl::StatusCode::kDataLoss);
  client->OnClosed(absl::UnavailableError("over"));
}

// Each node is started for itself: one of a pair may have been told to be careful.
TEST_F(LaneSealTest, WhatOneSideAsksForIsDone) {
  for (const bool is_producer : {false, true}) {
    consumer_.checksum = !is_producer;
    producer_.checksum = is_producer;
    auto server = std::make_shared<LaneServer>(producer_, kConsumer);
    const auto lane = std::make_shared<KeepingLane>(kConsumer);
    server->OnOpen(lane);
    const Frame hello = Hello(!is_producer);
    ASSERT_TRUE(server->OnFrame(hello.type, hello.body, {}).ok());
    const auto step = *manager_.Find(kStep);
    ASSERT_TRUE(step->Initialize({.job = "worker", .replica = 0, .task = 1}).ok());
    ASSERT_TRUE(step->Send(Key(), *Tensor::Allocate(DataType::kUint8, *Shape::Create({3}))).ok());
    const Frame request = Request(!is_producer);
    ASSERT_TRUE(server->OnFrame(request.type, request.body, {}).ok());
    ASSERT_EQ(lane->bodies.size(), 1u);
    const auto type = static_cast<uint16_t>(lane->types[0]);
    EXPECT_TRUE(IsSealed(type));
    const std::shared_ptr<LaneClient> client = Asking();
    lane->bodies[0][0] = static_cast<char>(lane->bodies[0][0] ^ 2);
    EXPECT_EQ(client->OnFrame(type, lane->bodies[0], {}).code(), absl::StatusCode::kDataLoss);
    client->OnClosed(absl::UnavailableError("over"));
    server->OnClosed(absl::UnavailableError("over"));
  }
}

}  // namespace
}  // namespace ferry
