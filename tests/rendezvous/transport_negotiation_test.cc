// SPDX-License-Identifier: Apache-2.0
// HELLO and messages of peers whose lists of transports differ from this process's, or are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"

#include "base/byte_reader.h"
#include "rendezvous/peer/peer_connection_pool.h"
#include "tests/rendezvous/fake_connector.h"
#include "tests/rendezvous/recording_control_channel.h"
#include "tests/rendezvous/transfer_context_fixture.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

// A field of HELLO as it is sent.
std::string Field(uint8_t field, absl::string_view value) {
  const auto bytes = static_cast<uint16_t>(value.size());
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&field), 1),
                      absl::string_view(reinterpret_cast<const char*>(&bytes), 2), value);
}
std::string TransportField(absl::string_view name, absl::string_view descriptor) {
  const char bytes = static_cast<char>(name.size());
  return Field(5, absl::StrCat(absl::string_view(&bytes, 1), name, descriptor));
}

TEST(HelloFields, OfALaterVersion_AreSkipped) {
  const absl::StatusOr<HelloMessage> hello = DecodeHello(
      Field(99, "what is to come") + Field(1, "boot") + TransportField("shm", "x") + Field(0, ""));
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->boot_id, "boot");
  EXPECT_EQ(hello->transports, (std::vector<TransportDescription>{{"shm", "x"}}));
}

TEST(HelloFields, Truncated_AreRefused) {
  const std::string body = Field(1, "boot") + TransportField("shm", "x");
  const size_t whole = Field(1, "boot").size();
  for (size_t bytes = 1; bytes < body.size(); ++bytes) {
    EXPECT_EQ(DecodeHello(body.substr(0, bytes)).ok(), bytes == whole) << bytes;
  }
  // The name is longer than the field.
  for (const char* const field : {"\x04shm", ""}) {
    EXPECT_THAT(std::string(DecodeHello(Field(5, field)).status().message()),
                HasSubstr("a transport without its name"));
  }
}

TEST(HelloFields, ListsBeyondALimit_AreRefusedWithTheReason) {
  std::string most;
  for (size_t i = 0; i < kMaxTransports; ++i) {
    most += TransportField(absl::StrCat("t", i), std::string(kMaxTransportDescriptorBytes, 'd'));
  }
  ASSERT_TRUE(DecodeHello(most).ok()) << DecodeHello(most).status();
  const std::pair<std::string, const char*> wrong[] = {
      {most + TransportField("one", ""), "33 transports"},
      {TransportField("shm", "") + TransportField("shm", ""), "two transports are called shm"},
      {TransportField("x", std::string(kMaxTransportDescriptorBytes + 1, 'd')), "1025 bytes"},
      {TransportField(std::string(kMaxTransportNameBytes + 1, 'x'), ""), "a transport called"},
      {TransportField("", ""), "a transport called"},
      {TransportField("A\n", ""), "a transport called \"A\\n\""},
      {TransportField("inline", ""), "another meaning"},
      {Field(1, "a") + Field(1, "b"), "two boot ids"},
      {Field(2, "a") + Field(2, "b"), "two host names"},
  };
  for (const auto& [body, why] : wrong) {
    const absl::Status status = DecodeHello(body).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

// The longest HELLO fits into a message of any control channel.
TEST(HelloFields, OfTheLargestSize_AreSent) {
  HelloMessage hello;
  hello.boot_id = hello.host_name = std::string(1000, 'x');
  hello.tcp.assign(100, std::string(1000, 'a'));
  hello.gpus.assign(100, std::string(1000, 'g'));
  for (size_t i = 0; i < kMaxTransports; ++i) {
    std::string name = absl::StrCat(i, std::string(kMaxTransportNameBytes, 'x'));
    name.resize(kMaxTransportNameBytes);
    hello.transports.push_back({name, std::string(kMaxTransportDescriptorBytes, 'd')});
  }
  RecordingControlChannel channel(kProducer);
  ASSERT_TRUE(SendHello(channel, hello).ok());
  EXPECT_LE(channel.bodies[0].size(), kMaxControlBody);
  EXPECT_EQ(DecodeHello(channel.bodies[0])->transports, hello.transports);
  hello.transports.push_back({"one_more", ""});
  EXPECT_FALSE(SendHello(channel, hello).ok());
}

// A consumer with the transports "views" and "copies", and a connection with a producer.
class TransportNegotiation : public TransferContextTest {
 protected:
  TransportNegotiation() {
    transports_.push_back(MakeFaultyTransport(state_, "views", true));
    transports_.push_back(MakeFaultyTransport(state_, "copies", false));
    context_.self.peer = kConsumer;
    context_.self.transports = DescribeTransports(transports_);
    context_.manager = &manager_;
    context_.transports = &transports_;
    pool_ = std::make_shared<PeerConnectionPool>(context_);
    pool_->set_connector(&connector_);
  }
  ~TransportNegotiation() override {
    if (handler_ != nullptr) handler_->OnClosed(absl::UnavailableError("over"));
  }

  absl::Status Connect(const std::vector<TransportDescription>& transports) {
    handler_ = pool_->Accept(kProducer);
    channel_ = std::make_shared<RecordingControlChannel>(kProducer);
    channel_->keeps_pings = false;
    handler_->OnOpen(channel_);
    HelloMessage hello;
    hello.transports = transports;
    return Hear([&](ControlChannel& channel) { return SendHello(channel, hello); });
  }
  absl::Status Hear(const std::function<absl::Status(ControlChannel&)>& send) {
    RecordingControlChannel peer(kConsumer);
    EXPECT_TRUE(send(peer).ok());
    return handler_->OnFrame(static_cast<uint16_t>(peer.types.at(0)), peer.bodies.at(0), {});
  }
  // A descriptor for a tensor of 20000 bytes that the peer has exposed, by its transport `number`.
  absl::Status HearRts(uint8_t number) {
    ReadyToSendMessage rts;
    rts.id = 1;
    rts.transport = number;
    rts.header = {DataType::kUint8, *Shape::Create({20'000}), 20'000, {}};
    char body[16];
    ByteWriter writer(body, sizeof(body));
    writer.Put(uint64_t{5});
    writer.Put(~uint64_t{5});
    state_->lent[5] = *Tensor::Allocate(DataType::kUint8, rts.header.shape);
    rts.body = writer.view();
    return Hear([&](ControlChannel& channel) { return SendReadyToSend(channel, rts, {}); });
  }
  void Request() {
    Endpoint producer;
    producer.peer = kProducer;
    const RendezvousKey key = *RendezvousKey::Parse(
        RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                            "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
    (*pool_->Open(producer))
        ->Request(kStep, key, {}, [this](const absl::Status& status, Received received) {
          status_ = status;
          path_ = std::string(received.path);
          ++ended_;
        });
  }

  TransferContext context_;
  FakeConnector connector_;
  std::shared_ptr<PeerConnectionPool> pool_;
  std::shared_ptr<ControlHandler> handler_;
  std::shared_ptr<RecordingControlChannel> channel_;
  absl::Status status_;
  std::string path_;
  int ended_ = 0;
};

TEST_F(TransportNegotiation, NumbersOfAnotherOrder_MeanTheirNames) {
  ASSERT_TRUE(Connect({{"other", ""}, {"copies", ""}, {"views", ""}}).ok());
  Request();
  const absl::Status heard = HearRts(2);
  ASSERT_TRUE(heard.ok()) << heard;
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(path_, "copies");
}

TEST_F(TransportNegotiation, NumberThatThePeerHasNotAnnounced_EndsTheChannelAndIsNamed) {
  ASSERT_TRUE(Connect({{"copies", ""}}).ok());
  Request();
  // This process has a second one, which is none of the peer's.
  for (const uint8_t number : {2, 200}) {
    const absl::Status heard = HearRts(number);
    EXPECT_EQ(heard.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(heard.message()), HasSubstr(absl::StrCat("transport ", number)));
  }
  EXPECT_EQ(ended_, 0);
}

TEST_F(TransportNegotiation, MessagesForATransportThatThisProcessLacks_EndTheChannel) {
  ASSERT_TRUE(Connect({{"copies", ""}, {"other", ""}}).ok());
  Request();
  const absl::Status statuses[] = {HearRts(2), Hear([](ControlChannel& channel) {
                                     return SendSenderControl(channel, {2, "x"}, {});
                                   }),
                                   Hear([](ControlChannel& channel) {
                                     return SendReceiverControl(channel, {2, "x"});
                                   })};
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("transport 2 of its sender, which is other"));
  }
}

// The costs are random, so that each transport would be selected at times.
TEST_F(TransportNegotiation, ValuesForAPeer_GoByATransportThatItHas) {
  ASSERT_TRUE(Connect({{"copies", ""}}).ok());
  const std::shared_ptr<RemoteRendezvous> step = *manager_.Find(kStep);
  ASSERT_TRUE(step->Initialize({.job = "worker", .replica = 0, .task = kConsumer.node_id}).ok());
  for (uint64_t id = 1; id <= 50; ++id) {
    const RendezvousKey key = *RendezvousKey::Parse(
        RendezvousKey::Text("/job:worker/replica:0/task:2/device:CPU:0", kConsumer.incarnation,
                            "/job:worker/replica:0/task:1/device:CPU:0", absl::StrCat(id)));
    ASSERT_TRUE(Hear([&](ControlChannel& channel) {
                  return SendRequest(channel, {id, kStep, false, key.text()});
                }).ok());
    const Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({20'000}));
    ASSERT_TRUE(step->Send(key, tensor).ok());
    ASSERT_EQ(channel_->types.back(), PeerMessageType::kReadyToSend);
    // The number of this process's list.
    EXPECT_EQ(DecodeReadyToSend(channel_->bodies.back())->transport, 2);
  }
}

// No endpoints are made for what the peer could not understand.
TEST_F(TransportNegotiation, TransportsThatThePeerLacks_GetNoEndpoints) {
  ASSERT_TRUE(Connect({{"copies", ""}}).ok());
  EXPECT_EQ(state_->halves, 2);
  handler_->OnClosed(absl::UnavailableError("over"));
  handler_ = nullptr;
  EXPECT_EQ(state_->aborted_halves, 2);
}

}  // namespace
}  // namespace ferry
