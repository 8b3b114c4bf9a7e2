// SPDX-License-Identifier: Apache-2.0
// Frames of which one bit has changed, at either end of a control channel that has checksums.
#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/peer/eager_protocol.h"
#include "rendezvous/peer/frame_checksum.h"
#include "tests/rendezvous/peer_world.h"
#include "tests/rendezvous/recording_control_channel.h"
#include "tests/rendezvous/transfer_context_fixture.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Frame {
  uint16_t type = 0;
  std::string body;
};

// The first frame of `send`, with its checksum.
Frame Checksummed(const std::function<absl::Status(ControlChannel&)>& send,
                  bool is_checksummed = true) {
  const auto kept = std::make_shared<RecordingControlChannel>(kProducer);
  const std::shared_ptr<ControlChannel> channel =
      is_checksummed ? MakeChecksummedChannel(kept) : kept;
  EXPECT_TRUE(send(*channel).ok());
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

// A wrapper that forwarded only Send would end each burst at its first frame.
TEST(ChecksummedChannelTest, AppendedFrames_HaveChecksums_AndAreKicked) {
  const auto kept = std::make_shared<RecordingControlChannel>(kProducer);
  const std::shared_ptr<ControlChannel> channel = MakeChecksummedChannel(kept);
  ASSERT_TRUE(channel->Send(1, {"a", "bc"}).ok());
  ASSERT_TRUE(channel->Append(1, {"ab", "c"}).ok());
  EXPECT_EQ(kept->types.at(1), kept->types.at(0));
  EXPECT_EQ(kept->bodies.at(1), kept->bodies.at(0));
  EXPECT_EQ(kept->kicks, 0);
  channel->Kick();
  EXPECT_EQ(kept->kicks, 1);
}

class FrameChecksumTest : public TransferContextTest {
 protected:
  FrameChecksumTest() {
    consumer_.self.peer = kConsumer;
    producer_.self.peer = kProducer;
    producer_.manager = &manager_;
    producer_.transports = consumer_.transports = &transports_;
    transports_.push_back(MakeFaultyTransport(state_, "copies", false));
    consumer_.checksum = true;
  }

  // One end of a control channel.
  struct End {
    explicit End(const TransferContext& context)
        : pool(std::make_shared<PeerConnectionPool>(context)) {
      pool->set_connector(&connector);
    }
    ~End() {
      if (handler != nullptr) handler->OnClosed(absl::UnavailableError("over"));
    }
    absl::Status Hear(const Frame& frame) { return handler->OnFrame(frame.type, frame.body, {}); }
    void Close(const absl::Status& why) { std::exchange(handler, nullptr)->OnClosed(why); }

    FakeConnector connector;
    const std::shared_ptr<PeerConnectionPool> pool;
    std::shared_ptr<ControlHandler> handler;
    std::shared_ptr<RecordingControlChannel> channel;
  };
  // A consumer with a pending request on a control channel that it has opened.
  std::unique_ptr<End> Asking() {
    auto end = std::make_unique<End>(consumer_);
    Endpoint endpoint;
    endpoint.peer = kProducer;
    const std::shared_ptr<TensorRequester> requester = *end->pool->Open(endpoint);
    end->handler = end->connector.Take(1);
    end->channel = std::make_shared<RecordingControlChannel>(kProducer);
    end->channel->keeps_pings = false;
    end->handler->OnOpen(end->channel);
    EXPECT_TRUE(end->Hear(Hello()).ok());
    requester->Request(kStep, Key(), {}, [this](const absl::Status& status, Received received) {
      ++ended_;
      status_ = status;
      received_ = std::move(received);
    });
    EXPECT_EQ(end->channel->types.size(), 2u);
    return end;
  }
  // A producer whose consumer has opened a control channel, and has sent nothing yet.
  std::unique_ptr<End> Serving() {
    auto end = std::make_unique<End>(producer_);
    end->handler = end->pool->Accept(kConsumer);
    end->channel = std::make_shared<RecordingControlChannel>(kConsumer);
    end->channel->keeps_pings = false;
    end->handler->OnOpen(end->channel);
    return end;
  }
  static Frame Sent(const End& end, size_t index) {
    return {static_cast<uint16_t>(end.channel->types.at(index)), end.channel->bodies.at(index)};
  }
  Frame SendRts(bool is_checksummed = true) {
    ReadyToSendMessage rts;
    rts.id = 1;
    rts.header = {DataType::kInt32, *Shape::Create({2, 1}), 8};
    rts.body = "12345678";
    return Checksummed([&](ControlChannel& channel) { return SendReadyToSend(channel, rts, {}); },
                       is_checksummed);
  }
  Frame Hello(bool is_checksummed = true) {
    return Checksummed(
        [](ControlChannel& channel) {
          return SendHello(channel, {"boot", "host"});
        },
        is_checksummed);
  }
  Frame Request(bool is_checksummed = true) {
    return Checksummed(
        [](ControlChannel& channel) {
          return SendRequest(channel, {1, kStep, false, Key().text()});
        },
        is_checksummed);
  }

  TransferContext consumer_;
  TransferContext producer_;
  int ended_ = 0;
  absl::Status status_;
  Received received_;
};

// As if they came one by one, although those of the eager protocol are passed on together.
TEST_F(FrameChecksumTest, FramesWithoutChecksumsThatArriveTogether_AreRefused) {
  const auto end = Asking();
  EagerFrameWriter writer(kStep, 0);
  EagerRecord record;
  const std::string text(Key().text());
  record.text = text;
  record.is_dead = true;
  EXPECT_TRUE(writer.Append(record));
  const Frame eager =
      Checksummed([&](ControlChannel& channel) { return SendEager(channel, writer); }, false);
  const ControlFrame frames[] = {{eager.type, eager.body}, {eager.type, eager.body}};
  EXPECT_EQ(end->handler->OnFrames(frames).code(), absl::StatusCode::kDataLoss);
}

// A changed shape, id or type would deliver the value to a receiver as something else.
TEST_F(FrameChecksumTest, ChangedBitOfADescriptor_IsDetected) {
  const Frame rts = SendRts();
  ForEachFlip(rts, [&](const Frame& flipped, size_t bit) {
    ended_ = 0;
    const std::unique_ptr<End> consumer = Asking();
    const absl::Status status = consumer->Hear(flipped);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bit << ": " << status;
    EXPECT_EQ(ended_, 0) << bit;
    // As every control channel does with frames that a handler refuses.
    consumer->Close(status);
    EXPECT_EQ(ended_, 1);
    EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status_.message()), AllOf(HasSubstr("node 1"), HasSubstr("step 7"),
                                                      HasSubstr(Key().text()), HasSubstr("dmesg")));
  });
  const std::unique_ptr<End> consumer = Asking();
  EXPECT_TRUE(consumer->Hear(rts).ok());
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(ToString(received_.tensor.shape()), "[2,1]");
}

// A changed key or step would deliver a value to the wrong receiver.
TEST_F(FrameChecksumTest, ChangedBitOfARequest_IsDetected) {
  const Frame hello = Hello();
  ForEachFlip(Request(), [&](const Frame& flipped, size_t bit) {
    const std::unique_ptr<End> producer = Serving();
    ASSERT_TRUE(producer->Hear(hello).ok());
    const absl::Status status = producer->Hear(flipped);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bit << ": " << status;
    EXPECT_EQ(manager_.step_count(), 0u) << bit;
    // The consumer receives the reason.
    ASSERT_EQ(producer->channel->bodies.size(), 2u);
    ended_ = 0;
    const std::unique_ptr<End> consumer = Asking();
    const absl::Status heard = consumer->Hear(Sent(*producer, 1));
    EXPECT_EQ(heard.code(), absl::StatusCode::kDataLoss) << heard;
    EXPECT_THAT(std::string(heard.message()), HasSubstr("node 1 closes the connection: a "));
    EXPECT_THAT(std::string(heard.message()), HasSubstr("from node 2"));
  });
}

// One bit of the first frame says whether there are checksums at all.
TEST_F(FrameChecksumTest, ChangedBitOfTheFirstMessage_IsDetected) {
  ForEachFlip(Hello(), [&](const Frame& flipped, size_t bit) {
    EXPECT_FALSE(Serving()->Hear(flipped).ok()) << bit;
  });
}

TEST_F(FrameChecksumTest, FramesOfAChannel_AllHaveChecksumsOrNone) {
  for (const bool first : {false, true}) {
    const std::unique_ptr<End> producer = Serving();
    EXPECT_TRUE(producer->Hear(Hello(first)).ok());
    EXPECT_FALSE(producer->Hear(Request(!first)).ok());
  }
  const std::unique_ptr<End> consumer = Asking();
  EXPECT_EQ(consumer->Hear(SendRts(/*is_checksummed=*/false)).code(), absl::StatusCode::kDataLoss);
}

// Each node has its own options: only one of a pair may ask for checksums.
TEST_F(FrameChecksumTest, OneSideAsksForChecksums_BothUseThem) {
  for (const bool is_producer : {false, true}) {
    consumer_.checksum = !is_producer;
    producer_.checksum = is_producer;
    const std::unique_ptr<End> producer = Serving();
    ASSERT_TRUE(producer->Hear(Hello(!is_producer)).ok());
    const auto step = *manager_.Find(kStep);
    ASSERT_TRUE(step->Initialize({.job = "worker", .replica = 0, .task = 1}).ok());
    ASSERT_TRUE(step->Send(Key(), *Tensor::Allocate(DataType::kUint8, *Shape::Create({3}))).ok());
    // A side that learns that its peer uses checksums uses them too, from the second frame on.
    ASSERT_TRUE(producer->Hear(Request()).ok());
    ASSERT_EQ(producer->channel->bodies.size(), 2u);
    EXPECT_TRUE(IsChecksummed(Sent(*producer, 0).type));
    Frame rts = Sent(*producer, 1);
    EXPECT_TRUE(IsChecksummed(rts.type));
    const std::unique_ptr<End> consumer = Asking();
    EXPECT_EQ(IsChecksummed(Sent(*consumer, 0).type), !is_producer);
    EXPECT_TRUE(IsChecksummed(Sent(*consumer, 1).type));
    rts.body[0] = static_cast<char>(rts.body[0] ^ 2);
    EXPECT_EQ(consumer->Hear(rts).code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace ferry
