// SPDX-License-Identifier: Apache-2.0
// The states of outgoing and incoming transfers: which may follow which, and what each frame of a
// peer does in each of them.
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "rendezvous/peer/incoming_transfer.h"
#include "rendezvous/peer/outgoing_transfer.h"
#include "tests/rendezvous/recording_control_channel.h"
#include "tests/rendezvous/tensor_responder_fixture.h"

namespace ferry {
namespace {

using Out = OutgoingState;
using In = IncomingState;

// All lines that are logged while it lives.
class LogCapture final {
 public:
  explicit LogCapture(absl::string_view levels) {
    SetLogLevels(ParseLogSpec(levels).levels);
    SetLogOutput([this](absl::string_view line) { lines_.emplace_back(line); });
  }
  ~LogCapture() {
    SetLogOutput(nullptr);
    SetLogLevels(ParseLogSpec("").levels);
  }
  int Count(absl::string_view part) const {
    int count = 0;
    for (const std::string& line : lines_) count += absl::StrContains(line, part) ? 1 : 0;
    return count;
  }

 private:
  std::vector<std::string> lines_;
};

RendezvousKey AnyKey() {
  return *RendezvousKey::Parse(
      RendezvousKey::Text("/job:worker/replica:0/task:1/device:CPU:0", kProducer.incarnation,
                          "/job:worker/replica:0/task:2/device:CPU:0", "edge"));
}

std::unique_ptr<OutgoingTransfer> NewOutgoing() {
  return std::make_unique<OutgoingTransfer>(nullptr, RequestMessage{.id = 1, .step_id = kStep},
                                            AnyKey());
}

std::unique_ptr<IncomingTransfer> NewIncoming() {
  return std::make_unique<IncomingTransfer>(std::weak_ptr<TensorRequester>(), kStep, AnyKey(),
                                            RecvArgs(), RecvCallback(), /*needs_name=*/false);
}

// For each state, the transitions that lead to it from the first one.
const std::vector<std::vector<Out>>& OutgoingSequences() {
  static const auto* const sequences =
      new std::vector<std::vector<Out>>{{},
                                        {Out::kMatched},
                                        {Out::kMatched, Out::kStaging},
                                        {Out::kMatched, Out::kExposing},
                                        {Out::kMatched, Out::kExposing, Out::kExposed},
                                        {Out::kMatched, Out::kExposing, Out::kExposed, Out::kLent},
                                        {Out::kFinished}};
  return *sequences;
}

const std::vector<std::vector<In>>& IncomingSequences() {
  static const auto* const sequences =
      new std::vector<std::vector<In>>{{},
                                       {In::kRequested},
                                       {In::kRequested, In::kFetching},
                                       {In::kRequested, In::kFetching, In::kRetrying},
                                       {In::kRequested, In::kCancelled},
                                       {In::kFinished}};
  return *sequences;
}

// Tries every transition from every state with Advance, and checks which ones succeed.
template <typename Transfer, typename State>
void ExpectLegal(const std::function<std::unique_ptr<Transfer>()>& make, State first,
                 const std::vector<std::vector<State>>& sequences,
                 const std::set<std::pair<State, State>>& legal,
                 const std::function<absl::string_view(State)>& name) {
  const LogCapture log("error");
  int refused = 0;
  for (const std::vector<State>& sequence : sequences) {
    const State from = sequence.empty() ? first : sequence.back();
    for (size_t i = 0; i < sequences.size(); ++i) {
      const State to = static_cast<State>(i);
      const std::unique_ptr<Transfer> transfer = make();
      for (const State step : sequence) ASSERT_TRUE(transfer->Advance(step));
      ASSERT_EQ(transfer->state(), from);
      const bool is_legal = legal.contains({from, to});
      EXPECT_EQ(IsLegal(from, to), is_legal) << name(from) << " to " << name(to);
      EXPECT_EQ(transfer->Advance(to), is_legal) << name(from) << " to " << name(to);
      EXPECT_EQ(transfer->state(), is_legal ? to : from) << name(from) << " to " << name(to);
      refused += is_legal ? 0 : 1;
    }
  }
  EXPECT_EQ(log.Count("illegal state of a "), refused);
}

TEST(TransferStates, Outgoing_ExactlyTheListedTransitionsAreLegal) {
  ExpectLegal<OutgoingTransfer, Out>(NewOutgoing, Out::kRequested, OutgoingSequences(),
                                     {{Out::kRequested, Out::kMatched},
                                      {Out::kRequested, Out::kExposed},
                                      {Out::kRequested, Out::kFinished},
                                      {Out::kMatched, Out::kStaging},
                                      {Out::kMatched, Out::kExposing},
                                      {Out::kMatched, Out::kFinished},
                                      {Out::kStaging, Out::kMatched},
                                      {Out::kStaging, Out::kFinished},
                                      {Out::kExposing, Out::kExposed},
                                      {Out::kExposing, Out::kMatched},
                                      {Out::kExposing, Out::kFinished},
                                      {Out::kExposed, Out::kLent},
                                      {Out::kExposed, Out::kMatched},
                                      {Out::kExposed, Out::kFinished},
                                      {Out::kLent, Out::kFinished}},
                                     OutgoingStateName);
}

TEST(TransferStates, Incoming_ExactlyTheListedTransitionsAreLegal) {
  ExpectLegal<IncomingTransfer, In>(NewIncoming, In::kQueued, IncomingSequences(),
                                    {{In::kQueued, In::kRequested},
                                     {In::kQueued, In::kFinished},
                                     {In::kRequested, In::kFetching},
                                     {In::kRequested, In::kCancelled},
                                     {In::kRequested, In::kFinished},
                                     {In::kFetching, In::kRetrying},
                                     {In::kFetching, In::kFinished},
                                     {In::kRetrying, In::kFetching},
                                     {In::kRetrying, In::kCancelled},
                                     {In::kRetrying, In::kFinished},
                                     {In::kCancelled, In::kFinished}},
                                    IncomingStateName);
}

TEST(TransferStates, EachTransitionIsLoggedAtDebug) {
  const LogCapture log("transport=debug");
  EXPECT_TRUE(NewOutgoing()->Advance(Out::kMatched));
  EXPECT_TRUE(NewIncoming()->Advance(In::kRequested));
  EXPECT_EQ(log.Count(absl::StrCat("send state: peer=2 step=", kStep,
                                   " request=1 from=requested to=matched")),
            1);
  EXPECT_EQ(log.Count(absl::StrCat("receive state: peer=1 step=", kStep,
                                   " request=0 from=queued to=requested")),
            1);
}

// A producer whose transfer is brought into each state, and then gets each frame.
class OutgoingFrames : public TensorResponderTest {
 protected:
  OutgoingFrames() {
    // The first transport makes copies, which may be retried.
    Use("copies", /*makes_views=*/false);
  }
  void Use(const char* name, bool makes_views) {
    transports_.clear();
    transports_.push_back(MakeFaultyTransport(state_, name, makes_views));
    Open(/*sends_checksums=*/false);
    channel_->keeps_pings = false;
    id_ = 1;
  }
  // A request in that state.
  void Reach(Out state) {
    ++edge_;
    state_->faults = {};
    state_->late.clear();
    Use(state == Out::kLent ? "views" : "copies", state == Out::kLent);
    const RendezvousKey key = KeyOf(absl::StrCat("edge", edge_));
    ASSERT_TRUE(Hear([&](ControlChannel& channel) {
                  return SendRequest(channel, {1, kStep, /*may_reject=*/false, key.text()});
                }).ok());
    if (state == Out::kRequested) return;
    if (state == Out::kExposing) state_->faults.later = 1000;
    ASSERT_TRUE(
        step_->Send(key, *Tensor::Allocate(DataType::kInt32, *Shape::Create({100'000}))).ok());
    state_->faults = {};
    if (state == Out::kFinished) {
      ASSERT_TRUE(Ack().ok());
    }
  }
  absl::Status Ack() {
    return Hear([](ControlChannel& channel) { return SendId(channel, PeerMessageType::kAck, 1); });
  }
  absl::Status Cancel() {
    return Hear(
        [](ControlChannel& channel) { return SendId(channel, PeerMessageType::kCancel, 1); });
  }
  absl::Status Retry() {
    return Hear([](ControlChannel& channel) {
      return SendRetry(channel, {1, absl::AbortedError("not ready")});
    });
  }
  absl::Status Reject() {
    return Hear([](ControlChannel& channel) {
      return SendRejected(channel, {1, absl::DataLossError("damaged"), 0, ""});
    });
  }
  absl::Status RequestAgain() {
    const RendezvousKey key = KeyOf("another");
    return Hear([&](ControlChannel& channel) {
      return SendRequest(channel, {1, kStep, /*may_reject=*/false, key.text()});
    });
  }
  size_t listed() {
    TableSizes sizes = responder_->InnerTableSizes();
    return sizes["responder.waiting"] + sizes["responder.exposed"];
  }

  int edge_ = 0;
};

TEST_F(OutgoingFrames, Ack_EndsWhatWasSentAndIsIgnoredInAllOtherStates) {
  for (const Out state :
       {Out::kRequested, Out::kExposing, Out::kExposed, Out::kLent, Out::kFinished}) {
    Reach(state);
    const bool was_sent = state == Out::kExposed || state == Out::kLent;
    EXPECT_TRUE(Ack().ok()) << OutgoingStateName(state);
    EXPECT_EQ(listed(), was_sent || state == Out::kFinished ? 0u : 1u) << OutgoingStateName(state);
    EXPECT_TRUE(Ack().ok()) << "a second one";
    state_->late.clear();
  }
}

// The tensor would be taken back while a transport is still preparing it, and be told of then.
TEST_F(OutgoingFrames, AckBeforeTheDescriptor_TheTensorIsStillSent) {
  Reach(Out::kExposing);
  EXPECT_TRUE(Ack().ok());
  while (state_->Step()) {
  }
  EXPECT_EQ(channel_->types.back(), PeerMessageType::kReadyToSend);
  EXPECT_EQ(state_->lent.size(), 1u);
  EXPECT_TRUE(Ack().ok());
  EXPECT_TRUE(state_->lent.empty());
  EXPECT_EQ(listed(), 0u);
}

TEST_F(OutgoingFrames, Cancel_EndsOnlyWhatWaitsForItsValue) {
  for (const Out state :
       {Out::kRequested, Out::kExposing, Out::kExposed, Out::kLent, Out::kFinished}) {
    Reach(state);
    const size_t before = channel_->types.size();
    const size_t listed_before = listed();
    EXPECT_TRUE(Cancel().ok()) << OutgoingStateName(state);
    const bool ends = state == Out::kRequested;
    EXPECT_EQ(listed(), ends ? 0u : listed_before) << OutgoingStateName(state);
    EXPECT_EQ(channel_->types.size(), before + (ends ? 1 : 0)) << OutgoingStateName(state);
    if (ends) {
      EXPECT_EQ(channel_->types.back(), PeerMessageType::kError);
    }
    state_->late.clear();
  }
}

TEST_F(OutgoingFrames, Retry_IsLegalOnlyForASentTensorThatCanBeRetried) {
  for (const Out state :
       {Out::kRequested, Out::kExposing, Out::kExposed, Out::kLent, Out::kFinished}) {
    Reach(state);
    const size_t listed_before = listed();
    const absl::Status status = Retry();
    EXPECT_EQ(status.code(),
              state == Out::kExposed ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
        << OutgoingStateName(state) << ": " << status;
    EXPECT_EQ(listed(), listed_before) << OutgoingStateName(state);
    state_->late.clear();
  }
}

TEST_F(OutgoingFrames, Rejected_LosesWhatWasSentAndIsIgnoredInAllOtherStates) {
  for (const Out state :
       {Out::kRequested, Out::kExposing, Out::kFinished, Out::kExposed, Out::kLent}) {
    Reach(state);
    const bool was_sent = state == Out::kExposed || state == Out::kLent;
    const size_t listed_before = listed();
    EXPECT_TRUE(Reject().ok()) << OutgoingStateName(state);
    EXPECT_EQ(listed(), was_sent ? 0u : listed_before) << OutgoingStateName(state);
    if (!was_sent) {
      EXPECT_FALSE(absl::IsDataLoss(step_->send_status())) << OutgoingStateName(state);
    }
  }
  EXPECT_FALSE(step_->send_status().ok());
}

TEST_F(OutgoingFrames, RequestWithAnIdInUse_EndsTheChannelInAllStatesButTheLast) {
  for (const Out state :
       {Out::kRequested, Out::kExposing, Out::kExposed, Out::kLent, Out::kFinished}) {
    Reach(state);
    EXPECT_EQ(RequestAgain().code(),
              state == Out::kFinished ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
        << OutgoingStateName(state);
    state_->late.clear();
  }
}

// A consumer whose transfer is brought into each state, and then gets each frame.
class IncomingFrames : public ::testing::Test {
 protected:
  IncomingFrames() { transports_.push_back(MakeFaultyTransport(state_, "copies", false)); }
  ~IncomingFrames() override { Close(); }

  void Close() {
    if (requester_ != nullptr) requester_->OnClosed(absl::UnavailableError("over"));
  }
  // Request 1 in that state, of a new consumer.
  void Reach(In state) {
    Close();
    state_->faults = {};
    state_->lent.clear();
    state_->lent.emplace(1, *Tensor::Allocate(DataType::kUint8, *Shape::Create({8})));
    ended_ = 0;
    context_.self.peer = kConsumer;
    context_.transports = &transports_;
    Endpoint producer;
    producer.peer = kProducer;
    requester_ = std::make_shared<TensorRequester>(context_, producer);
    channel_ = std::make_shared<RecordingControlChannel>(kProducer);
    requester_->OnOpen(channel_, DescribeTransports(transports_));
    fetch_ = requester_->Request(kStep, AnyKey(), {},
                                 [this](const absl::Status&, const Received&) { ++ended_; });
    if (state == In::kFetching) {
      state_->faults.never = 1000;
      ASSERT_TRUE(Rts(1).ok());
    } else if (state == In::kRetrying) {
      state_->faults.again = 1000;
      ASSERT_TRUE(Rts(1).ok());
    } else if (state == In::kCancelled) {
      fetch_->Cancel();
    } else if (state == In::kFinished) {
      ASSERT_TRUE(Rts(0).ok());
    }
    state_->faults = {};
    const auto* const transfer = static_cast<const IncomingTransfer*>(fetch_.get());
    ASSERT_EQ(transfer->state(), state);
  }
  absl::Status Rts(uint8_t transport) {
    RecordingControlChannel channel(kProducer);
    ReadyToSendMessage rts;
    rts.id = 1;
    rts.transport = transport;
    rts.header = {DataType::kUint8, *Shape::Create({8}), 8};
    const std::string number = std::string(1, '\1') + std::string(7, '\0') +
                               std::string(1, '\xFE') + std::string(7, '\xFF');
    rts.body = transport == 0 ? absl::string_view("12345678") : absl::string_view(number);
    EXPECT_TRUE(SendReadyToSend(channel, rts, {}).ok());
    return requester_->OnFrame(static_cast<uint16_t>(PeerMessageType::kReadyToSend),
                               channel.bodies[0], {});
  }
  absl::Status Error() {
    RecordingControlChannel channel(kProducer);
    EXPECT_TRUE(SendError(channel, {1, absl::NotFoundError("no such step")}).ok());
    return requester_->OnFrame(static_cast<uint16_t>(PeerMessageType::kError), channel.bodies[0],
                               {});
  }
  // In each state, the frame ends the request, or is a violation.
  void ExpectAnswer(const std::function<absl::Status()>& hear) {
    for (const In state :
         {In::kRequested, In::kFetching, In::kRetrying, In::kCancelled, In::kFinished}) {
      Reach(state);
      const int ended_before = ended_;
      const bool is_expected =
          state == In::kRequested || state == In::kRetrying || state == In::kCancelled;
      const absl::Status status = hear();
      EXPECT_EQ(status.code(),
                is_expected ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
          << IncomingStateName(state) << ": " << status;
      // A caller is told once, and the one that has cancelled was told before.
      const bool tells = state == In::kRequested || state == In::kRetrying;
      EXPECT_EQ(ended_, ended_before + (tells ? 1 : 0)) << IncomingStateName(state);
      if (is_expected) {
        EXPECT_EQ(NonEmptyTables(requester_->InnerTableSizes()), "") << IncomingStateName(state);
        EXPECT_EQ(hear().code(), absl::StatusCode::kInvalidArgument) << "a second one";
      }
    }
  }

  std::shared_ptr<FaultyTransportState> state_ =
      std::make_shared<FaultyTransportState>(1, TransportFaults{});
  TransportList transports_;
  TransferContext context_;
  std::shared_ptr<TensorRequester> requester_;
  std::shared_ptr<RecordingControlChannel> channel_;
  std::shared_ptr<RemoteFetch> fetch_;
  int ended_ = 0;
};

TEST_F(IncomingFrames, InlineRts_EndsARequestThatAwaitsAnAnswerAndNoOther) {
  ExpectAnswer([this] { return Rts(0); });
}

TEST_F(IncomingFrames, RtsOfATransport_EndsARequestThatAwaitsAnAnswerAndNoOther) {
  ExpectAnswer([this] { return Rts(1); });
}

TEST_F(IncomingFrames, Error_EndsARequestThatAwaitsAnAnswerAndNoOther) {
  ExpectAnswer([this] { return Error(); });
}

// The producer learns of a cancellation once, and only while it owes an answer.
TEST_F(IncomingFrames, CancelledByTheCaller_TheProducerIsToldWhileItOwesAnAnswer) {
  for (const In state :
       {In::kRequested, In::kFetching, In::kRetrying, In::kCancelled, In::kFinished}) {
    Reach(state);
    const size_t before = channel_->types.size();
    fetch_->Cancel();
    EXPECT_EQ(ended_, 1) << IncomingStateName(state);
    const bool tells = state == In::kRequested || state == In::kRetrying;
    EXPECT_EQ(channel_->types.size(), before + (tells ? 1 : 0)) << IncomingStateName(state);
    if (tells) {
      EXPECT_EQ(channel_->types.back(), PeerMessageType::kCancel);
    }
  }
}

}  // namespace
}  // namespace ferry
