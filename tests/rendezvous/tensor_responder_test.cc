// SPDX-License-Identifier: Apache-2.0
// Consumers that retry, reject, cancel or send invalid messages: what the producer keeps.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/host_arena.h"
#include "tests/rendezvous/tensor_responder_fixture.h"

namespace ferry {
namespace {

class TensorResponderFrames : public TensorResponderTest {
 protected:
  TensorResponderFrames() {
    channel_->keeps_pings = false;
    // A transport of copies, which may be requested again.
    transports_.clear();
    transports_.push_back(MakeFaultyTransport(state_, "copies", false));
    Open(/*sends_checksums=*/false);
    channel_->keeps_pings = false;
  }
  // Too large for a transfer descriptor: it is exported.
  void Lend(const std::string& name) {
    Transfer(name, DataType::kInt32, 100'000, /*may_reject=*/false);
  }
  absl::Status Request(const RendezvousKey& key) {
    return Hear([&](ControlChannel& channel) {
      return SendRequest(channel, {++id_, kStep, false, key.text()});
    });
  }
  ErrorMessage LastRefusal() {
    EXPECT_EQ(channel_->types.back(), PeerMessageType::kError);
    return *DecodeError(channel_->bodies.back());
  }
};

// The sender keeps its exports until Release: a failed attempt would keep its memory until the
// control channel ends.
TEST_F(TensorResponderFrames, Retry_ReleasesTheFirstAttemptsExport) {
  Lend("edge");
  ASSERT_EQ(state_->lent.size(), 1u);
  const uint64_t first = state_->lent.begin()->first;
  const auto again = [this](ControlChannel& channel) {
    return SendRetry(channel, {id_, absl::AbortedError("not ready")});
  };
  ASSERT_TRUE(Hear(again).ok());
  ASSERT_EQ(state_->lent.size(), 1u);
  EXPECT_NE(state_->lent.begin()->first, first);
  EXPECT_EQ(channel_->types.back(), PeerMessageType::kReadyToSend);
  EXPECT_TRUE(Hear([this](ControlChannel& channel) {
                return SendId(channel, PeerMessageType::kAck, id_);
              }).ok());
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

// A tensor that can never be brought is given up after a bounded number of tries, with nothing
// kept.
TEST_F(TensorResponderFrames, RetriesWithoutEnd_AreLostWithTheirReason) {
  context_.policy.require = "copies";
  Lend("edge");
  const auto again = [this](ControlChannel& channel) {
    return SendRetry(channel, {id_, absl::AbortedError("not ready")});
  };
  int tries = 0;
  while (channel_->types.back() == PeerMessageType::kReadyToSend && tries < 100) {
    ASSERT_TRUE(Hear(again).ok());
    ++tries;
  }
  EXPECT_EQ(tries, 8);
  EXPECT_EQ(LastRefusal().status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(step_->send_status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

// A rogue peer could mark values of other nodes as lost, and honest steps would end in errors.
TEST_F(TensorResponderFrames, RejectedWithAKeyOfAnotherNode_EndsTheChannelAndLosesNothing) {
  const absl::Status why = absl::InvalidArgumentError("does not fit");
  const RendezvousKey foreign = KeyOf("edge", kProducer.incarnation, /*consumer=*/3);
  EXPECT_EQ(Hear([&](ControlChannel& channel) {
              return SendRejected(channel, {77, why, kStep, foreign.text()});
            }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(step_->send_status().ok()) << step_->send_status();
  const RendezvousKey own = KeyOf("edge");
  EXPECT_TRUE(Hear([&](ControlChannel& channel) {
                return SendRejected(channel, {77, why, kStep, own.text()});
              }).ok());
  EXPECT_EQ(step_->send_status().code(), absl::StatusCode::kInvalidArgument);
}

// Its key names the producer's incarnation: another incarnation has no such value, and the request
// would wait forever.
TEST_F(TensorResponderFrames, RequestForAnotherIncarnation_IsRefusedAtOnceWithAborted) {
  ASSERT_TRUE(Request(KeyOf("edge", kProducer.incarnation + 1)).ok());
  ASSERT_FALSE(channel_->types.empty());
  EXPECT_EQ(LastRefusal().status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

TEST_F(TensorResponderFrames, RequestIdInUse_EndsTheChannel) {
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  --id_;
  EXPECT_EQ(Request(KeyOf("other")).code(), absl::StatusCode::kInvalidArgument);
  // Also while its value is exported.
  Lend("lent");
  --id_;
  EXPECT_EQ(Request(KeyOf("other")).code(), absl::StatusCode::kInvalidArgument);
}

// A later value must go to another receiver, and not to a forgotten request.
TEST_F(TensorResponderFrames, Cancelled_IsRefusedAndTheValueStays) {
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  EXPECT_TRUE(Hear([this](ControlChannel& channel) {
                return SendId(channel, PeerMessageType::kCancel, id_);
              }).ok());
  EXPECT_EQ(LastRefusal().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
  ASSERT_TRUE(step_->Send(KeyOf("edge"), *Tensor::Allocate(DataType::kInt32, Shape())).ok());
  const size_t frames = channel_->types.size();
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  ASSERT_EQ(channel_->types.size(), frames + 1);
  EXPECT_EQ(channel_->types.back(), PeerMessageType::kReadyToSend);
  // Cancelling an unknown id has no effect.
  EXPECT_TRUE(Hear([](ControlChannel& channel) {
                return SendId(channel, PeerMessageType::kCancel, 999);
              }).ok());
  EXPECT_EQ(channel_->types.size(), frames + 1);
}

// A value that was exported, and not fetched yet, is lost when the control channel ends; a step
// must not close as if it had arrived.
TEST_F(TensorResponderFrames, ChannelEndsWhileAValueIsExported_ItIsRecordedAsLostAndReleased) {
  Lend("edge");
  ASSERT_TRUE(Request(KeyOf("waits")).ok());
  EXPECT_EQ(responder_->unfinished(), 1u);
  responder_->OnClosed(absl::UnavailableError("the peer is gone"));
  EXPECT_EQ(step_->send_status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(responder_->unfinished(), 0u);
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

// The same while its path is selected: it is not exposed any more.
TEST_F(TensorResponderFrames, ChannelEndsWhileAPathIsSelected_TheValueIsLostAndNotExported) {
  state_->on_cost = [this] { responder_->OnClosed(absl::UnavailableError("the peer is gone")); };
  Lend("edge");
  ASSERT_EQ(state_->on_cost, nullptr);
  EXPECT_TRUE(channel_->types.empty()) << "the channel has closed";
  EXPECT_EQ(step_->send_status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

// A RETRY for a value that was never exposed would release it twice.
TEST_F(TensorResponderFrames, RetryForUnexposedId_EndsTheChannel) {
  const auto again = [this](uint64_t id) {
    return Hear([id](ControlChannel& channel) {
      return SendRetry(channel, {id, absl::AbortedError("not ready")});
    });
  };
  EXPECT_EQ(again(77).code(), absl::StatusCode::kInvalidArgument);
  // One that waits has no descriptor yet.
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  EXPECT_EQ(again(id_).code(), absl::StatusCode::kInvalidArgument);
  Lend("lent");
  ASSERT_TRUE(Hear([this](ControlChannel& channel) {
                return SendId(channel, PeerMessageType::kAck, id_);
              }).ok());
  EXPECT_EQ(again(id_).code(), absl::StatusCode::kInvalidArgument) << "it is there already";
  // A view is taken at once, or never.
  transports_.clear();
  transports_.push_back(MakeFaultyTransport(state_, "views", true));
  Open(/*sends_checksums=*/false);
  Lend("view");
  EXPECT_EQ(again(id_).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TensorResponderFrames, ReplyToAnUnknownTransport_EndsTheChannel) {
  for (const uint8_t transport : {1, 2, 255}) {
    const absl::Status status = Hear([&](ControlChannel& channel) {
      return SendReceiverControl(channel, {transport, "body"});
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message() == "this transport has no control messages from receivers",
              transport == 1)
        << status;
  }
}

// A second ACK, or one for a pending request, is ignored; the pending value must still arrive.
TEST_F(TensorResponderFrames, AckForUnexposedId_ChangesNothing) {
  const auto done = [this](uint64_t id) {
    return Hear(
        [id](ControlChannel& channel) { return SendId(channel, PeerMessageType::kAck, id); });
  };
  ASSERT_TRUE(Request(KeyOf("edge")).ok());
  EXPECT_TRUE(done(id_).ok());
  EXPECT_TRUE(done(77).ok());
  EXPECT_EQ(responder_->InnerTableSizes()["responder.waiting"], 1u);
  ASSERT_TRUE(step_->Send(KeyOf("edge"), *Tensor::Allocate(DataType::kInt32, Shape())).ok());
  EXPECT_EQ(channel_->types.back(), PeerMessageType::kReadyToSend);
  // Ids may come again once their value is there, as long as nothing of it is left.
  Lend("lent");
  EXPECT_TRUE(done(id_).ok());
  EXPECT_TRUE(done(id_).ok());
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_TRUE(step_->send_status().ok()) << step_->send_status();
  EXPECT_EQ(step_->operations().count(), 0u);
}

// The first that was rejected is the step's error, and its memory is given back.
TEST_F(TensorResponderFrames, ExportedAndRejected_IsLostAndReleased) {
  for (const char* edge : {"first", "second"}) {
    Lend(edge);
    EXPECT_EQ(step_->operations().count(), 1u);
    EXPECT_TRUE(Hear([&](ControlChannel& channel) {
                  return SendRejected(channel, {id_, absl::DataLossError(edge), 0, ""});
                }).ok());
    EXPECT_TRUE(state_->lent.empty());
    EXPECT_EQ(step_->operations().count(), 0u);
  }
  EXPECT_EQ(step_->send_status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(step_->send_status().message().find("did not take what it was sent: first"),
            std::string::npos)
      << step_->send_status();
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

// Closing the step is woken by the end of the last operation, and checks at once for losses.
TEST_F(TensorResponderFrames, ExportedValueIsLost_TheStepKnowsBeforeItsOperationEnds) {
  std::shared_ptr<RemoteRendezvous> step;
  std::vector<absl::Status> lost;
  RendezvousManager manager(clock_, fetcher_, {}, [&] { lost.push_back(step->send_status()); });
  context_.manager = &manager;
  for (const bool is_rejected : {true, false}) {
    const int64_t step_id = is_rejected ? 100 : 101;
    step = *manager.Find(step_id);
    ASSERT_TRUE(step->Initialize({.job = "worker", .replica = 0, .task = kProducer.node_id}).ok());
    const RendezvousKey key = KeyOf("edge");
    ASSERT_TRUE(Hear([&](ControlChannel& channel) {
                  return SendRequest(channel, {++id_, step_id, false, key.text()});
                }).ok());
    const Shape shape = *Shape::Create({100'000});
    ASSERT_TRUE(step->Send(key, *Tensor::Allocate(DataType::kInt32, shape)).ok());
    ASSERT_EQ(step->operations().count(), 1u);
    const OutstandingOperations::Waiter waiter(step->operations());
    if (is_rejected) {
      ASSERT_TRUE(Hear([&](ControlChannel& channel) {
                    return SendRejected(channel, {id_, absl::DataLossError("damaged"), 0, ""});
                  }).ok());
    } else {
      responder_->OnClosed(absl::UnavailableError("the peer is gone"));
    }
    ASSERT_EQ(lost.size(), is_rejected ? 1u : 2u);
    EXPECT_EQ(lost.back().code(),
              is_rejected ? absl::StatusCode::kDataLoss : absl::StatusCode::kUnavailable);
  }
  context_.manager = &manager_;
}

// Exposes nothing but a number. With `works` false it can send nothing at once.
class ZeroCopySender final : public TransportSender {
 public:
  void Expose(uint64_t id, const Tensor&, const TensorLocation&, ExposeCallback done) override {
    ++exposed;
    std::move(done)(TransferDescriptor{.body = "later"});
  }
  bool TryExposeAndSend(uint64_t id, const Tensor&, const DescriptorFrame& frame) override {
    if (before_expose_now) before_expose_now();
    if (!works) return false;
    EXPECT_TRUE(frame.channel->Send(frame.type, {frame.head, "now"}).ok());
    return true;
  }
  void Release(uint64_t) override { ++released; }
  void Abort(const absl::Status&) override {}

  bool works = true;
  std::function<void()> before_expose_now;
  int exposed = 0;
  int released = 0;
};

class ZeroCopyTransport final : public Transport {
 public:
  ZeroCopyTransport()
      : Transport({.name = "map",
                   .summary = "for tensors of an arena",
                   .capabilities = {.outlives_producer = true, .has_fd_channel_latency = true}}) {}

  absl::StatusOr<PathCost> Cost(const PathQuery& query) const override {
    return PathCost{absl::Microseconds(1), query.is_in_arena ? kNoCopy : 1e9};
  }
  std::shared_ptr<TransportSender> CreateSender(const Endpoint&) override { return sender; }
  std::shared_ptr<TransportReceiver> CreateReceiver(const Endpoint&, ReleaseCallback) override {
    return nullptr;
  }

  const std::shared_ptr<ZeroCopySender> sender = std::make_shared<ZeroCopySender>();
};

class TensorResponderZeroCopy : public TensorResponderTest {
 protected:
  TensorResponderZeroCopy() {
    auto transport = std::make_unique<ZeroCopyTransport>();
    sender_ = transport->sender;
    transports_.clear();
    transports_.push_back(std::move(transport));
    Open(/*sends_checksums=*/false);
    channel_->keeps_pings = false;
  }
  // A value of the arena is requested, and sent.
  void SendFromArena() {
    const RendezvousKey key = KeyOf("edge");
    ASSERT_TRUE(Hear([&](ControlChannel& channel) {
                  return SendRequest(channel, {++id_, kStep, false, key.text()});
                }).ok());
    ASSERT_TRUE(step_
                    ->Send(key, *Tensor::Create(DataType::kInt32, *Shape::Create({1024}),
                                                *arena_->Allocate(4096)))
                    .ok());
  }
  absl::Status Ack() {
    return Hear(
        [this](ControlChannel& channel) { return SendId(channel, PeerMessageType::kAck, id_); });
  }

  const std::shared_ptr<HostArena> arena_ = *HostArena::Create({});
  std::shared_ptr<ZeroCopySender> sender_;
};

TEST_F(TensorResponderZeroCopy, TransportSendsTheRtsItself) {
  SendFromArena();
  ASSERT_EQ(channel_->bodies.size(), 1u);
  const absl::StatusOr<ReadyToSendMessage> rts = DecodeReadyToSend(channel_->bodies[0]);
  ASSERT_TRUE(rts.ok()) << rts.status();
  EXPECT_EQ(rts->id, id_);
  EXPECT_EQ(rts->transport, 1);
  EXPECT_EQ(rts->header.bytes, 4096u);
  EXPECT_EQ(rts->body, "now");
  EXPECT_EQ(sender_->exposed, 0);
  EXPECT_EQ(responder_->InnerTableSizes()["responder.views"], 1u);
  ASSERT_TRUE(Ack().ok());
  EXPECT_EQ(sender_->released, 1);
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

// The consumer may answer before the call that sent the frame has returned.
TEST_F(TensorResponderZeroCopy, AckFollowsTheRtsAtOnce_TheTransferIsOver) {
  channel_->on_send = [this](PeerMessageType) { EXPECT_TRUE(Ack().ok()); };
  SendFromArena();
  EXPECT_EQ(sender_->released, 1);
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
  EXPECT_EQ(step_->operations().count(), 0u);
}

TEST_F(TensorResponderZeroCopy, TransportCannotSendAtOnce_ItIsExposedAsAnyOther) {
  sender_->works = false;
  SendFromArena();
  ASSERT_EQ(channel_->bodies.size(), 1u);
  EXPECT_EQ(DecodeReadyToSend(channel_->bodies[0])->body, "later");
  EXPECT_EQ(sender_->exposed, 1);
  ASSERT_TRUE(Ack().ok());
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
}

// It would be listed again in a table that nothing empties any more.
TEST_F(TensorResponderZeroCopy, ChannelClosesMeanwhile_TheValueIsLost) {
  sender_->works = false;
  sender_->before_expose_now = [this] {
    responder_->OnClosed(absl::UnavailableError("it has died"));
  };
  SendFromArena();
  EXPECT_EQ(sender_->exposed, 0);
  EXPECT_TRUE(channel_->bodies.empty());
  EXPECT_EQ(step_->send_status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(NonEmptyTables(responder_->InnerTableSizes()), "");
  EXPECT_EQ(step_->operations().count(), 0u);
}

}  // namespace
}  // namespace ferry
