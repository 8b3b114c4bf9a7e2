// SPDX-License-Identifier: Apache-2.0
// Consumers of producers that do not keep to the protocol, and of callers in the wrong moment.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/rendezvous/peer_world.h"
#include "tests/rendezvous/recording_control_channel.h"
#include "transport/inline_threshold.h"

namespace ferry {
namespace {

class TensorRequesterTest : public ::testing::Test {
 protected:
  TensorRequesterTest() {
    transports_.push_back(MakeFaultyTransport(state_, "copies", false));
    context_.self.peer = kConsumer;
    context_.transports = &transports_;
    Endpoint producer;
    producer.peer = kProducer;
    requester_ = std::make_shared<TensorRequester>(context_, producer);
  }
  ~TensorRequesterTest() override { requester_->OnClosed(absl::UnavailableError("over")); }

  std::shared_ptr<RemoteFetch> Request() {
    const RendezvousKey key = *RendezvousKey::Parse(
        RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                            "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
    return requester_->Request(kStep, key, {}, [this](const absl::Status& status, const Received&) {
      ++ended_;
      status_ = status;
    });
  }
  // A u8[8] as the producer would send it.
  absl::Status SendRts(uint64_t id, uint8_t transport = 0, const std::string& body = "12345678") {
    RecordingControlChannel channel(kProducer);
    ReadyToSendMessage rts;
    rts.id = id;
    rts.transport = transport;
    rts.header = {DataType::kUint8, *Shape::Create({8}), 8};
    rts.body = body;
    EXPECT_TRUE(SendReadyToSend(channel, rts, {}).ok());
    return requester_->OnFrame(static_cast<uint16_t>(PeerMessageType::kReadyToSend),
                               channel.bodies[0], {});
  }
  absl::Status Refusal(uint64_t id) {
    RecordingControlChannel channel(kProducer);
    EXPECT_TRUE(SendError(channel, {id, absl::CancelledError("cancelled")}).ok());
    return requester_->OnFrame(static_cast<uint16_t>(PeerMessageType::kError), channel.bodies[0],
                               {});
  }

  std::shared_ptr<FaultyTransportState> state_ =
      std::make_shared<FaultyTransportState>(1, TransportFaults{});
  TransportList transports_;
  TransferContext context_;
  std::shared_ptr<TensorRequester> requester_;
  std::shared_ptr<RecordingControlChannel> channel_ =
      std::make_shared<RecordingControlChannel>(kProducer);
  int ended_ = 0;
  absl::Status status_;
};

// The producer would keep the request, and answer it with a value meant for another.
TEST_F(TensorRequesterTest, CancelsRequestsThatAreCancelledWhileBeingSent) {
  const std::shared_ptr<RemoteFetch> fetch = Request();
  channel_->on_send = [&fetch](PeerMessageType type) {
    if (type == PeerMessageType::kRequest) fetch->Cancel();
  };
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(channel_->types, (std::vector{PeerMessageType::kRequest, PeerMessageType::kCancel}));
}

TEST_F(TensorRequesterTest, RequestIsNotCancelledBeforeItHasBegun) {
  Request()->Cancel();
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  EXPECT_TRUE(channel_->types.empty());
}

// It would return the lease of a view that is still in use.
TEST_F(TensorRequesterTest, SecondDescriptorEndsTheChannel) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  Request();
  EXPECT_TRUE(SendRts(1).ok());
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(SendRts(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SendRts(2).code(), absl::StatusCode::kInvalidArgument);
}

// Its bytes have come over TCP, though another transport is required. No transport of this list
// uses TCP; tests of processes see the name of the one that does.
TEST_F(TensorRequesterTest, LargeInlineTensorWithARequiredTransport_IsRefused) {
  context_.policy.require = "copies";
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  Request();
  RecordingControlChannel channel(kProducer);
  ReadyToSendMessage rts;
  rts.id = 1;
  rts.header = {DataType::kUint8, *Shape::Create({kInlineMaxTcpForbidden + 1}),
                kInlineMaxTcpForbidden + 1};
  const std::string body(kInlineMaxTcpForbidden + 1, 'x');
  rts.body = body;
  ASSERT_TRUE(SendReadyToSend(channel, rts, {}).ok());
  EXPECT_TRUE(
      requester_
          ->OnFrame(static_cast<uint16_t>(PeerMessageType::kReadyToSend), channel.bodies[0], {})
          .ok());
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status_.message().find("node 1 sends by inline messages, and copies is the required"),
            absl::string_view::npos)
      << status_;
}

// A peer that does not check its data: the tensor is refused, and the control channel stays open.
TEST_F(TensorRequesterTest, BooleansThatAreNeither0Nor1_AreRefusedAndTheChannelStays) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  for (const char* const body : {"\0\1\2\1", "\0\1\0\1"}) {
    const uint64_t id = static_cast<uint64_t>(ended_ + 1);
    Request();
    RecordingControlChannel channel(kProducer);
    ReadyToSendMessage rts;
    rts.id = id;
    rts.header = {DataType::kBool, *Shape::Create({4}), 4};
    rts.body = {body, 4};
    ASSERT_TRUE(SendReadyToSend(channel, rts, {}).ok());
    EXPECT_TRUE(
        requester_
            ->OnFrame(static_cast<uint16_t>(PeerMessageType::kReadyToSend), channel.bodies[0], {})
            .ok());
    EXPECT_EQ(ended_, static_cast<int>(id));
    if (id == 2) break;
    EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status_.message().find("sent by inline is invalid: element 2 of bool[4] is 2"),
              std::string::npos)
        << status_;
  }
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_FALSE(requester_->has_ended());
}

// The receiver's callback would run while its buffer is being written.
TEST_F(TensorRequesterTest, ErrorWhileATensorIsInFlight_IsDelayed) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  Request();
  // Never to be completed.
  state_->faults.never = 1000;
  state_->lent.emplace(1, *Tensor::Allocate(DataType::kUint8, *Shape::Create({8})));
  const std::string body =
      std::string(1, '\1') + std::string(7, '\0') + std::string(1, '\xFE') + std::string(7, '\xFF');
  EXPECT_TRUE(SendRts(1, 1, body).ok());
  EXPECT_EQ(ended_, 0);
  EXPECT_EQ(Refusal(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SendRts(1, 1, body).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ended_, 0);
}

TEST_F(TensorRequesterTest, CancelledRequestIsAnsweredOnceAndNotReported) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  Request()->Cancel();
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(Refusal(1).ok());
  EXPECT_EQ(Refusal(1).code(), absl::StatusCode::kInvalidArgument);
  // Its transfer descriptor was faster.
  Request()->Cancel();
  EXPECT_TRUE(SendRts(2).ok());
  EXPECT_EQ(ended_, 2);
  EXPECT_EQ(SendRts(2).code(), absl::StatusCode::kInvalidArgument);
}

// Where it ends the control channel, too: the sender of a view would take that for taken.
TEST_F(TensorRequesterTest, RejectionIsTheLastMessage) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  Request();
  EXPECT_TRUE(SendRts(1, 1, "nonsense").ok());
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(channel_->types.back(), PeerMessageType::kRejected);
  EXPECT_EQ(channel_->refusal.code(), absl::StatusCode::kInvalidArgument);
}

// A receiver may leave the job as soon as it gets the error; its producer would count the value as
// received.
TEST_F(TensorRequesterTest, TensorDoesNotFit_RejectedIsSentBeforeTheReceiverIsCalled) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  const RendezvousKey key = *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
  RecvArgs args;
  args.destination = *Tensor::Allocate(DataType::kDouble, *Shape::Create({8}));
  PeerMessageType last = PeerMessageType::kRequest;
  requester_->Request(kStep, key, args, [&](const absl::Status& status, const Received&) {
    status_ = status;
    last = channel_->types.back();
  });
  EXPECT_TRUE(SendRts(1, 1, std::string(16, '\0')).ok());
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(last, PeerMessageType::kRejected);
}

// The rest of the buffer would hold its former bytes, or the tensor's bytes would go beyond it; of
// equal size, other elements.
TEST_F(TensorRequesterTest, TensorOfAnotherSizeOrType_IsRejectedOnEachPath) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  const RendezvousKey key = *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
  const auto u8 = [](int64_t bytes) {
    return *Tensor::Allocate(DataType::kUint8, *Shape::Create({bytes}));
  };
  state_->lent.emplace(1, u8(8));
  const std::string copied =
      std::string(1, '\1') + std::string(7, '\0') + std::string(1, '\xFE') + std::string(7, '\xFF');
  uint64_t id = 0;
  for (const uint8_t transport : {0, 1}) {
    for (const Tensor& destination :
         {u8(16), u8(9), u8(7), *Tensor::Allocate(DataType::kInt8, *Shape::Create({8}))}) {
      RecvArgs args;
      args.destination = destination;
      status_ = absl::OkStatus();
      requester_->Request(kStep, key, args,
                          [&](const absl::Status& status, const Received&) { status_ = status; });
      EXPECT_TRUE(SendRts(++id, transport, transport == 0 ? "12345678" : copied).ok());
      EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument)
          << status_ << ": transport " << int{transport} << ", " << destination.bytes() << " bytes";
      EXPECT_EQ(channel_->types.back(), PeerMessageType::kRejected);
    }
  }
  // Any shape of that size.
  for (const uint8_t transport : {0, 1}) {
    RecvArgs args;
    args.destination = *Tensor::Allocate(DataType::kUint8, *Shape::Create({2, 4}));
    status_ = absl::UnknownError("not called");
    requester_->Request(kStep, key, args,
                        [&](const absl::Status& status, const Received&) { status_ = status; });
    EXPECT_TRUE(SendRts(++id, transport, transport == 0 ? "12345678" : copied).ok());
    EXPECT_TRUE(status_.ok()) << status_;
  }
}

// A number beyond the last would be looked up behind the list.
TEST_F(TensorRequesterTest, UnknownTransport_EndsTheChannelAndNoRequest) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  Request();
  EXPECT_EQ(SendRts(1, 2, "body").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SendRts(1, 255, "body").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ended_, 0);
  for (const uint8_t transport : {1, 2, 255}) {
    RecordingControlChannel channel(kProducer);
    ASSERT_TRUE(SendSenderControl(channel, {transport, "body"}, {}).ok());
    const absl::Status status = requester_->OnFrame(
        static_cast<uint16_t>(PeerMessageType::kSenderControl), channel.bodies[0], {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message() == "this transport has no control messages from senders",
              transport == 1)
        << status;
  }
}

// A copy that cannot be fetched is requested again, twice if necessary; the last one is the value,
// and its producer is notified of it once.
TEST_F(TensorRequesterTest, CopyThatSucceedsAtTheThirdAttempt_IsRequestedTwice) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  Request();
  state_->lent.emplace(1, *Tensor::Allocate(DataType::kUint8, *Shape::Create({8})));
  const std::string body =
      std::string(1, '\1') + std::string(7, '\0') + std::string(1, '\xFE') + std::string(7, '\xFF');
  state_->faults.again = 1000;
  for (int tries = 0; tries < 2; ++tries) {
    EXPECT_TRUE(SendRts(1, 1, body).ok());
    EXPECT_EQ(channel_->types.back(), PeerMessageType::kRetry);
    EXPECT_EQ(ended_, 0);
  }
  state_->faults.again = 0;
  EXPECT_TRUE(SendRts(1, 1, body).ok());
  EXPECT_EQ(ended_, 1);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(channel_->types, (std::vector{PeerMessageType::kRequest, PeerMessageType::kRetry,
                                          PeerMessageType::kRetry, PeerMessageType::kAck}));
  EXPECT_EQ(NonEmptyTables(requester_->InnerTableSizes()), "");
}

// The reason for which this side ended the control channel, and not the kernel's error.
TEST_F(TensorRequesterTest, ClosedForAReason_RequestsEndWithItAndNoneBegins) {
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  Request();
  requester_->Close(absl::DataLossError("the first reason"));
  EXPECT_EQ(channel_->refusal.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Request(), nullptr);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss);
  requester_->Close(absl::InternalError("a second"));
  EXPECT_EQ(channel_->refusal.code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(requester_->is_over());
  requester_->OnClosed(absl::UnavailableError("closed by the peer"));
  EXPECT_TRUE(requester_->is_over());
  EXPECT_EQ(ended_, 2);
  EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status_.message().find("the first reason (while it was asked for a value)"),
            std::string::npos)
      << status_;
  EXPECT_EQ(NonEmptyTables(requester_->InnerTableSizes()), "");
}

// A key that fits in no message ends its request, and neither the others' nor the control channel.
TEST_F(TensorRequesterTest, KeyIsTooLong_TheOtherRequestsAreSent) {
  const auto request = [this](size_t edge_bytes) {
    const RendezvousKey key = *RendezvousKey::Parse(RendezvousKey::Text(
        "/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
        "/job:worker/replica:0/task:2/device:CPU:0", std::string(edge_bytes, 'e')));
    requester_->Request(kStep, key, {}, [this](const absl::Status& status, const Received&) {
      ++ended_;
      status_ = status;
    });
  };
  request(1);
  request(kMaxKeyBytes);
  request(1);
  requester_->OnOpen(channel_, DescribeTransports(transports_));
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(status_.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(channel_->types, (std::vector{PeerMessageType::kRequest, PeerMessageType::kRequest}));
  EXPECT_TRUE(channel_->refusal.ok()) << channel_->refusal;
  // And when there is a control channel already.
  request(kMaxKeyBytes);
  EXPECT_EQ(ended_, 2);
  EXPECT_EQ(requester_->InnerTableSizes()["requester.waiting"], 2u);
  EXPECT_TRUE(channel_->refusal.ok()) << channel_->refusal;
}

}  // namespace
}  // namespace ferry
