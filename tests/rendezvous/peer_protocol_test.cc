// SPDX-License-Identifier: Apache-2.0
// Messages that are one byte too short, too long, or one beyond the range of a field. Decoders
// trust nothing.
#include "rendezvous/peer/peer_protocol.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"

#include "tests/rendezvous/recording_control_channel.h"

namespace ferry {
namespace {

std::string BodyOf(absl::FunctionRef<absl::Status(ControlChannel&)> send) {
  RecordingControlChannel channel({1, 1001});
  EXPECT_TRUE(send(channel).ok());
  return channel.bodies.at(0);
}
std::string WithInt32(std::string body, size_t at, uint32_t value) {
  body.replace(at, sizeof(value), reinterpret_cast<const char*>(&value), sizeof(value));
  return body;
}

TEST(PeerProtocol, CodesOfErrors_AreFrom1To16) {
  const std::string refusal = BodyOf([](ControlChannel& channel) {
    return SendError(channel, {7, absl::DataLossError("x")});
  });
  const std::string rejected = BodyOf([](ControlChannel& channel) {
    return SendRejected(channel, {7, absl::DataLossError("x"), 1, "key"});
  });
  EXPECT_EQ(DecodeError(refusal)->status, absl::DataLossError("x"));
  EXPECT_EQ(DecodeRejected(rejected)->status, absl::DataLossError("x"));
  for (const uint32_t code : {0u, 1u, 16u, 17u, UINT32_MAX}) {
    // An OK would be taken for a value that never arrived.
    const bool is_error = code >= 1 && code <= 16;
    EXPECT_EQ(DecodeError(WithInt32(refusal, 8, code)).ok(), is_error) << code;
    EXPECT_EQ(DecodeRejected(WithInt32(rejected, 16, code)).ok(), is_error) << code;
  }
}

TEST(PeerProtocol, KeyOfARejectedValue_EndsWithItsMessage) {
  const std::string body = BodyOf([](ControlChannel& channel) {
    return SendRejected(channel, {7, absl::DataLossError("why"), 1, "key"});
  });
  EXPECT_EQ(DecodeRejected(body)->key, "key");
  EXPECT_EQ(DecodeRejected(body)->status.message(), "why");
  EXPECT_EQ(DecodeRejected(WithInt32(body, 20, 6))->key, "keywhy");
  for (const uint32_t bytes : {7u, UINT32_MAX}) {
    EXPECT_FALSE(DecodeRejected(WithInt32(body, 20, bytes)).ok()) << bytes;
  }
}

TEST(PeerProtocol, KeysOfTheLargestSize_AreSentAndNoLarger) {
  RecordingControlChannel channel({1, 1001});
  EXPECT_TRUE(SendRequest(channel, {1, 2, true, std::string(kMaxKeyBytes, 'k')}).ok());
  EXPECT_EQ(DecodeRequest(channel.bodies.back())->key.size(), kMaxKeyBytes);
  EXPECT_TRUE(DecodeRequest(channel.bodies.back())->may_reject);
  EXPECT_EQ(SendRequest(channel, {1, 2, true, std::string(kMaxKeyBytes + 1, 'k')}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(channel.bodies.size(), 1u);
}

TEST(PeerProtocol, DescriptorWithInlineTensor_HoldsAsManyBytesAsItsShape) {
  const auto rts = [](size_t bytes, uint8_t transport, bool is_dead = false) {
    ReadyToSendMessage message;
    message.id = 7;
    message.transport = transport;
    message.is_dead = is_dead;
    message.header = {DataType::kInt32, *Shape::Create({2, 3}), 24};
    const std::string elements(bytes, 'x');
    message.body = elements;
    return BodyOf([&](ControlChannel& channel) { return SendReadyToSend(channel, message, {}); });
  };
  EXPECT_EQ(DecodeReadyToSend(rts(24, 0))->header.bytes, 24u);
  EXPECT_FALSE(DecodeReadyToSend(rts(23, 0)).ok());
  EXPECT_FALSE(DecodeReadyToSend(rts(25, 0)).ok());
  // For a transport, the bytes are the transport's own.
  EXPECT_EQ(DecodeReadyToSend(rts(5, 1))->body.size(), 5u);
  EXPECT_TRUE(DecodeReadyToSend(rts(0, 0, /*is_dead=*/true)).ok());
  EXPECT_FALSE(DecodeReadyToSend(rts(0, 1, /*is_dead=*/true)).ok());
}

TEST(PeerProtocol, ShapesOfDescriptors_AreCompleteAndOfValidRank) {
  ReadyToSendMessage message;
  message.transport = 1;
  message.header.dtype = DataType::kUint8;
  message.header.shape = *Shape::Create(std::vector<int64_t>(Shape::kMaxRank, 1));
  const std::string body =
      BodyOf([&](ControlChannel& channel) { return SendReadyToSend(channel, message, {}); });
  EXPECT_EQ(DecodeReadyToSend(body)->header.shape.rank(), static_cast<int>(Shape::kMaxRank));
  EXPECT_FALSE(DecodeReadyToSend(absl::string_view(body).substr(0, body.size() - 1)).ok());
  // With the number of dimensions in its rank.
  std::string deeper = body + std::string(8, '\1');
  deeper[17] = static_cast<char>(Shape::kMaxRank + 1);
  EXPECT_FALSE(DecodeReadyToSend(deeper).ok());
  // Elements that are no bytes cannot be sent so.
  std::string strings = body;
  strings[16] = static_cast<char>(DataType::kString);
  EXPECT_FALSE(DecodeReadyToSend(strings).ok());
}

TEST(PeerProtocol, MessagesOfOneId_AreNeitherShorterNorLonger) {
  const std::string body = BodyOf(
      [](ControlChannel& channel) { return SendId(channel, PeerMessageType::kAck, UINT64_MAX); });
  EXPECT_EQ(*DecodeId(body), UINT64_MAX);
  EXPECT_FALSE(DecodeId(absl::string_view(body).substr(1)).ok());
  EXPECT_FALSE(DecodeId(body + "x").ok());
}

TEST(PeerProtocol, ControlMessagesOfUnknownTransports_AreRefused) {
  EXPECT_FALSE(DecodeTransportControl("").ok());
  EXPECT_FALSE(DecodeTransportControl(absl::string_view("\0body", 5)).ok());
  EXPECT_EQ(DecodeTransportControl("\1body")->body, "body");
}

// If a machine has more addresses than the limit the first are sent, and the rest of the message is
// complete.
TEST(PeerProtocol, HelloOfManyAddresses_IsCutAndRead) {
  HelloMessage hello;
  hello.boot_id = std::string(1000, 'b');
  hello.host_name = "host";
  hello.tcp.assign(17, "10.0.0.1:1");
  hello.gpus.assign(65, "GPU-1");
  hello.transports = {{"shm", ""}, {"nccl", "22703"}};
  const std::string body =
      BodyOf([&](ControlChannel& channel) { return SendHello(channel, hello); });
  const absl::StatusOr<HelloMessage> read = DecodeHello(body);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->boot_id.size(), 256u);
  EXPECT_EQ(read->tcp.size(), 16u);
  EXPECT_EQ(read->gpus.size(), 64u);
  EXPECT_EQ(read->transports, hello.transports);
  EXPECT_FALSE(DecodeHello(body + "x").ok());
  EXPECT_FALSE(DecodeHello(absl::string_view(body).substr(0, body.size() - 1)).ok());
}

}  // namespace
}  // namespace ferry
