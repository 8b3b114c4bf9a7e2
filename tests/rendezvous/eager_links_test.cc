// SPDX-License-Identifier: Apache-2.0
// EagerOutbox and EagerInbox between the tables of a process and a control channel.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "base/thread.h"
#include "rendezvous/peer/eager_peers.h"
#include "rendezvous/rendezvous_manager.h"
#include "tests/rendezvous/recording_control_channel.h"

namespace ferry {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr PeerId kSelf = {1, 101};
constexpr PeerId kPeer = {2, 102};
constexpr int64_t kStep = 7;
const TaskName kSelfTask = {"worker", 0, 1};

TaskName PeerTask() { return {"worker", 0, 2}; }

class Fetcher final : public RemoteFetcher {
 public:
  explicit Fetcher(EagerLinks& eager) : links(&eager) {}
  std::shared_ptr<RemoteFetch> Fetch(int64_t, const RendezvousKey&, const RecvArgs&,
                                     RecvCallback done) override {
    fetches.push_back(std::move(done));
    return nullptr;
  }
  EagerLinks* eager_links() override { return links; }

  EagerLinks* links;
  std::vector<RecvCallback> fetches;
};

// Runs a function of the test where a value called "held" is sent, with the lock of its shard held.
class HeldLinks final : public EagerLinks, public EagerSendLink {
 public:
  explicit HeldLinks(EagerLinks& others) : others_(others) {}

  EagerSendLink* SendLinkFor(const RendezvousKey& key) override {
    return key.edge() == "held" ? this : others_.SendLinkFor(key);
  }
  EagerRecvLink* RecvLinkFor(const RendezvousKey& key) override { return others_.RecvLinkFor(key); }

  bool TrySend(const Offer&) override { return false; }
  uint64_t push_count() const override { return 0; }
  size_t TrySendMany(RemoteRendezvous&, absl::Span<SendItem* const> items, uint64_t,
                     bool) override {
    while_held();
    return items.size();
  }
  void AfterSend() override {}
  void OnStepServing(int64_t) override {}
  void StartFlush(int64_t) override {}
  void EndFlush(int64_t) override {}
  void OnStepEnd(RemoteRendezvous&, const absl::Status&) override {}

  std::function<void()> while_held;

 private:
  EagerLinks& others_;
};

class EagerLinksTest : public ::testing::Test {
 protected:
  EagerLinksTest() {
    context_.self.peer = kSelf;
    context_.transports = &transports_;
    context_.manager = &manager_;
    context_.clock = &clock_;
    context_.eager = &eager_;
    eager_.set_run_after([this](absl::Duration, absl::AnyInvocable<void()> call) {
      timers_.push_back(std::move(call));
    });
    channel_ = std::make_shared<RecordingControlChannel>(kPeer);
    outbox().OnOpen(channel_, EagerLimits(), {.in_arena = 2048, .elsewhere = kMaxEagerBytes});
    eager_.SetConnected(kPeer, *channel_, &outbox());
    inbox().OnOpen(channel_);
    EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEagerPush));
    EXPECT_TRUE(outbox()
                    .OnPush(*channel_, Encoded([](ControlChannel& out) {
                      return SendEagerPush(out, EagerScope::All());
                    }))
                    .ok());
  }
  ~EagerLinksTest() override {
    manager_.CleanupAll();
    outbox().OnClosed(*channel_, absl::UnavailableError("closed"));
    inbox().OnClosed(*channel_, absl::UnavailableError("closed"));
    EXPECT_EQ(NonEmptyTables(eager_.InnerTableSizes()), "");
  }

  EagerOutbox& outbox() { return *eager_.OutboxOf(kPeer); }
  EagerInbox& inbox() { return *eager_.InboxOf(kPeer); }
  std::vector<PeerMessageType> TakeTypes() {
    channel_->bodies.clear();
    return std::exchange(channel_->types, {});
  }
  template <typename Send>
  static std::string Encoded(const Send& send) {
    RecordingControlChannel out(kPeer);
    EXPECT_TRUE(send(out).ok());
    return out.bodies.at(0);
  }
  static RendezvousKey Key(const PeerId& from, const PeerId& to, absl::string_view name = "edge") {
    const auto device = [](const PeerId& peer) {
      return absl::StrCat("/job:worker/replica:0/task:", peer.node_id, "/device:CPU:0");
    };
    return *RendezvousKey::Parse(
        RendezvousKey::Text(device(from), from.incarnation, device(to), name));
  }
  // A key of this process, to the peer, whose items have that shard of a table, or another one.
  static RendezvousKey KeyInShardOf(const RendezvousKey& other, bool same) {
    constexpr uint64_t kShards = LocalRendezvous::kMaxShards;
    for (int i = 0;; ++i) {
      RendezvousKey key = Key(kSelf, kPeer, absl::StrCat(same ? "same_" : "other_", i));
      if ((key.hash() % kShards == other.hash() % kShards) == same) return key;
    }
  }
  void RunTimers() {
    for (auto& timer : std::exchange(timers_, {})) timer();
  }
  // As the consumer does.
  void AnswerMayPush() {
    const std::vector<std::string> bodies = channel_->bodies;
    const std::vector<PeerMessageType> types = TakeTypes();
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] != PeerMessageType::kEagerPull) continue;
      const auto pull = DecodeEagerPull(bodies[i]);
      ASSERT_TRUE(pull.ok());
      if (pull->kind != EagerPullKind::kMayPush) continue;
      const std::string push =
          Encoded([&pull](ControlChannel& out) { return SendEagerPush(out, pull->scope); });
      ASSERT_TRUE(outbox().OnPush(*channel_, push).ok());
    }
  }
  static Tensor Small() {
    Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({8}));
    std::memset(tensor.mutable_data(), 1, tensor.bytes());
    return tensor;
  }
  std::shared_ptr<RemoteRendezvous> Step(bool begins = true) {
    auto step = *manager_.Find(kStep);
    if (begins) {
      EXPECT_TRUE(step->Initialize(kSelfTask).ok());
    }
    return step;
  }
  // Frames of the peer that arrive together.
  absl::Status OnEager(const std::vector<std::string>& bodies) {
    std::vector<ControlFrame> frames;
    for (const std::string& body : bodies) frames.push_back({.body = body});
    return inbox().OnEager(*channel_, frames, [this](const EagerRange& range) {
      acknowledged_.push_back(range);
      return range.first == kBadAcknowledgement ? absl::InvalidArgumentError("it was not sent")
                                                : absl::OkStatus();
    });
  }
  // A value of the peer in the step.
  absl::Status Arrive(uint32_t sequence) {
    EagerFrameWriter writer(kStep, sequence);
    const std::string payload(8, 'x');
    const RendezvousKey key = Key(kPeer, kSelf);
    EagerRecord record;
    record.text = key.text();
    record.header = {DataType::kUint8, *Shape::Create({8}), payload.size()};
    record.payload = payload;
    EXPECT_TRUE(writer.Append(record));
    return OnEager({std::string(writer.view())});
  }

  static std::vector<absl::StatusCode> SendMany(RemoteRendezvous& step,
                                                const std::vector<std::string>& names) {
    std::vector<RendezvousKey> keys;
    for (const std::string& name : names) keys.push_back(Key(kSelf, kPeer, name));
    std::vector<SendItem> items;
    for (const RendezvousKey& key : keys) items.push_back({.key = &key, .tensor = Small()});
    step.SendMany(absl::MakeSpan(items));
    std::vector<absl::StatusCode> codes;
    for (const SendItem& item : items) codes.push_back(item.status.code());
    return codes;
  }
  // The names that the frame defines, "" for others.
  static std::vector<std::string> RecordsOf(const std::string& frame) {
    std::vector<std::string> names;
    EXPECT_TRUE(DecodeEager(
                    frame, [](const EagerHead&) { return absl::OkStatus(); },
                    [&names](const EagerRecord& record) {
                      const auto key = RendezvousKey::Parse(record.text);
                      names.emplace_back(key.ok() ? key->edge() : "");
                      return absl::OkStatus();
                    })
                    .ok());
    return names;
  }
  // A frame of the peer with a value for each of those names, whose bytes are its position.
  absl::Status ArriveMany(const std::vector<std::string>& names, uint32_t sequence = 0) {
    EagerFrameWriter writer(kStep, sequence);
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string payload(8, static_cast<char>(i));
      const RendezvousKey key = Key(kPeer, kSelf, names[i]);
      EagerRecord record;
      // In the first place where it is used.
      const auto first = std::find(names.begin(), names.end(), names[i]) - names.begin();
      record.name = static_cast<uint32_t>(first) + 1;
      if (static_cast<size_t>(first) == i) record.text = key.text();
      record.header = {DataType::kUint8, *Shape::Create({8}), payload.size()};
      record.payload = payload;
      EXPECT_TRUE(writer.Append(record));
    }
    return OnEager({std::string(writer.view())});
  }

  // A frame of the peer with values for those names, of one letter, whose bytes are their sequence
  // numbers. Defines each name once.
  EagerFrameWriter Frame(const std::vector<std::string>& names, int64_t step_id = kStep) {
    EagerFrameWriter writer(step_id, next_sequence_);
    for (const std::string& name : names) {
      const std::string payload(8, static_cast<char>(next_sequence_++));
      const RendezvousKey key = Key(kPeer, kSelf, name);
      EagerRecord record;
      if (!uses_texts_) record.name = static_cast<uint32_t>(name[0] - 'a') + 1;
      if (uses_texts_ || defined_.insert(record.name).second) record.text = key.text();
      record.header = {DataType::kUint8, *Shape::Create({8}), payload.size()};
      record.payload = payload;
      EXPECT_TRUE(writer.Append(record));
    }
    return writer;
  }
  // Frames of step kStep.
  std::vector<std::string> Frames(const std::vector<std::vector<std::string>>& frames) {
    std::vector<std::string> bodies;
    for (const auto& names : frames) bodies.emplace_back(Frame(names).view());
    return bodies;
  }
  // The peer opens another control channel.
  void Reconnect() {
    inbox().OnClosed(*channel_, absl::UnavailableError("closed"));
    inbox().OnOpen(channel_);
    TakeTypes();
    defined_.clear();
    next_sequence_ = 0;
  }

  // Posts receives together; each appends "NAME=VALUE" or "NAME: CODE" to `ended_`.
  void RecvMany(RemoteRendezvous& step, const std::vector<std::string>& names,
                CancellationToken* cancellation = nullptr) {
    std::vector<RendezvousKey> keys;
    for (const std::string& name : names) keys.push_back(Key(kPeer, kSelf, name));
    RecvKeys(step, keys, cancellation);
  }
  void RecvKeys(RemoteRendezvous& step, const std::vector<RendezvousKey>& keys,
                CancellationToken* cancellation = nullptr) {
    std::vector<RecvItem> items;
    for (const RendezvousKey& key : keys) {
      RecvArgs args;
      args.cancellation = cancellation;
      args.deadline = clock_.Now() + absl::Seconds(10);
      items.push_back(
          {.key = &key,
           .args = std::move(args),
           .done = [this, name = std::string(key.edge())](const absl::Status& status,
                                                          const Received& received) {
             ended_.push_back(
                 status.ok()
                     ? absl::StrCat(name, "=", *static_cast<const uint8_t*>(received.tensor.data()))
                     : absl::StrCat(name, ": ", absl::StatusCodeToString(status.code())));
           }});
    }
    step.RecvMany(absl::MakeSpan(items));
  }

  std::vector<std::string> ended_;
  // Frame gives the names no numbers.
  bool uses_texts_ = false;
  // The peer's names with a number, and the number of its next value.
  std::set<uint32_t> defined_;
  uint32_t next_sequence_ = 0;
  static constexpr uint32_t kBadAcknowledgement = 999;
  std::vector<EagerRange> acknowledged_;
  FakeClock clock_;
  TransportList transports_;
  TransferContext context_;
  EagerPeers eager_{context_, EagerLimits()};
  Fetcher fetcher_{eager_};
  std::vector<absl::AnyInvocable<void()>> timers_;
  RendezvousManager manager_{clock_, fetcher_, {.max_steps = 3}};
  std::shared_ptr<RecordingControlChannel> channel_;
};

TEST_F(EagerLinksTest, AValueForAStepThatIsOver_RefusesIt) {
  manager_.Cleanup(kStep);
  EXPECT_TRUE(Arrive(0).ok());
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kStepRefused));
  // Values under way needs no other.
  EXPECT_TRUE(Arrive(1).ok());
  EXPECT_THAT(TakeTypes(), IsEmpty());
}

TEST_F(EagerLinksTest, AValueForAStepThatCannotBeOpened_IsAnError) {
  for (const int64_t step_id : {1, 2, 3}) ASSERT_TRUE(manager_.Find(step_id).ok());
  EXPECT_EQ(Arrive(0).code(), absl::StatusCode::kResourceExhausted);
  const std::string pull = Encoded([](ControlChannel& out) {
    return SendEagerPull(out, {EagerPullKind::kUntilFree, EagerScope::Step(kStep), {}});
  });
  EXPECT_EQ(inbox().OnPull(*channel_, pull).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(TakeTypes(), IsEmpty());
}

// Its connection may be accepted only after its successor's.
TEST_F(EagerLinksTest, AnEarlierIncarnation_DoesNotKeepValuesFromItsSuccessor) {
  const auto step = Step();
  const PeerId earlier = {kPeer.node_id, 90};
  const auto late = std::make_shared<RecordingControlChannel>(earlier);
  EagerOutbox* const ended = eager_.OutboxOf(earlier);
  ended->OnOpen(late, EagerLimits(), {.in_arena = 2048, .elsewhere = kMaxEagerBytes});
  eager_.SetConnected(earlier, *late, ended);
  ASSERT_TRUE(step->Send(Key(kSelf, kPeer), Small()).ok());
  EXPECT_THAT(TakeTypes(), IsEmpty());
  ended->OnClosed(*late, absl::UnavailableError("it has died"));
  ASSERT_EQ(eager_.OnDisconnected(earlier, *late), &outbox());
  outbox().OfferAll();
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager));
  ASSERT_TRUE(step->Send(Key(kSelf, kPeer), Small()).ok());
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager));
}

// The same if that one takes only what it has requested.
TEST_F(EagerLinksTest, AnEarlierIncarnationWithoutTheCapability_DoesNotKeepValuesFromItsSuccessor) {
  const auto step = Step();
  const PeerId earlier = {kPeer.node_id, 90};
  const RecordingControlChannel first(earlier);
  const RecordingControlChannel second(earlier);
  eager_.SetConnected(earlier, first, nullptr);
  eager_.SetConnected(earlier, second, nullptr);
  ASSERT_TRUE(step->Send(Key(kSelf, kPeer), Small()).ok());
  EXPECT_EQ(eager_.OnDisconnected(earlier, first), nullptr);
  EXPECT_EQ(eager_.SendLinkFor(Key(kSelf, kPeer)), nullptr);
  ASSERT_EQ(eager_.OnDisconnected(earlier, second), &outbox());
  outbox().OfferAll();
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager));
  // It is now the one whose end counts.
  EXPECT_EQ(eager_.OnDisconnected(earlier, second), nullptr);
  EXPECT_EQ(eager_.SendLinkFor(Key(kSelf, kPeer)), &outbox());
  outbox().OnClosed(*channel_, absl::UnavailableError("it has died"));
  EXPECT_EQ(eager_.OnDisconnected(kPeer, *channel_), nullptr);
  EXPECT_EQ(eager_.SendLinkFor(Key(kSelf, kPeer)), nullptr);
}

// Else every receive of the consumer would fail.
TEST_F(EagerLinksTest, AWatch_NeedsNoRoomInTheTable) {
  RendezvousManager full(clock_, fetcher_, {.limits = {.max_pending_ops = 2}});
  const auto step = *full.Find(kStep);
  const auto receive = [&step](const RendezvousKey& key) {
    auto ended = std::make_shared<absl::Status>();
    step->RecvLocalAsync(key, {},
                         [ended](const absl::Status& status, const Received&) { *ended = status; });
    return ended;
  };
  const RendezvousKey watch = RendezvousKey::StepEnd(kSelfTask, kSelf.incarnation, PeerTask());
  const RendezvousKey key = Key(kSelf, kPeer);
  const auto fill = [&] {
    while (receive(key)->ok()) {
    }
  };
  // While receives are deferred, and then in the table.
  fill();
  const auto deferred = receive(watch);
  EXPECT_TRUE(step->Initialize(kSelfTask).ok());
  fill();
  const auto waiting = receive(watch);
  EXPECT_TRUE(deferred->ok());
  EXPECT_TRUE(waiting->ok());
  step->StartAbort(absl::AbortedError("it is over"));
  EXPECT_EQ(deferred->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(waiting->code(), absl::StatusCode::kAborted);
}

TEST_F(EagerLinksTest, AcknowledgementsOfMoreThanTheLimit_AreAnError) {
  std::vector<EagerRange> ranges(2, {.first = 0, .count = 16'000});
  const std::string body = Encoded([&](ControlChannel& out) { return SendEagerAck(out, ranges); });
  EXPECT_EQ(outbox().OnAck(*channel_, body).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EagerLinksTest, AStepThatEndsWithAValue_IsRefused) {
  const auto step = Step();
  EXPECT_TRUE(Arrive(0).ok());
  manager_.Cleanup(kStep);
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kStepRefused));
}

// The consumer would have to close the control channel.
TEST_F(EagerLinksTest, AKeyOfAnotherIncarnation_StaysHere) {
  const auto step = Step();
  EXPECT_TRUE(step->Send(Key({kSelf.node_id, 99}, kPeer), Small()).ok());
  EXPECT_THAT(TakeTypes(), IsEmpty());
  EXPECT_TRUE(step->HasQueued(Key({kSelf.node_id, 99}, kPeer)));
  EXPECT_TRUE(step->Send(Key(kSelf, kPeer), Small()).ok());
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager));
}

// A step may begin to serve between the moment at which a sender looks and that at which the link
// gets to know the step.
TEST_F(EagerLinksTest, AStepThatBeginsDuringASend_IsDrained) {
  const auto step = Step();
  const RendezvousKey key = Key(kSelf, kPeer);
  const Tensor tensor = Small();
  const SendArgs args;
  EXPECT_FALSE(outbox().TrySend(
      {.step = *step, .key = key, .tensor = tensor, .args = args, .is_step_serving = false}));
  eager_.SetConnected(kPeer, *channel_, nullptr);
  EXPECT_TRUE(step->Send(key, tensor).ok());
  eager_.SetConnected(kPeer, *channel_, &outbox());
  EXPECT_THAT(TakeTypes(), IsEmpty());
  outbox().AfterSend();
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager));
}

TEST_F(EagerLinksTest, ARestartedPeer_KeepsWhatItsSuccessorHasSent) {
  const auto step = Step();
  EXPECT_TRUE(Arrive(0).ok());
  manager_.FailTask(PeerTask(), absl::UnavailableError("node 2 has died"));
  bool has_value = false;
  step->RecvAsync(Key(kPeer, kSelf), {},
                  [&has_value](const absl::Status& status, const Received& received) {
                    has_value = status.ok() && received.tensor.bytes() == 8;
                  });
  EXPECT_TRUE(has_value);
}

TEST_F(EagerLinksTest, ARestartedPeer_DoesNotEndTheWatchOfItsSuccessor) {
  const auto step = Step();
  const RendezvousKey watch = RendezvousKey::StepEnd(kSelfTask, kSelf.incarnation, PeerTask());
  absl::Status ended;
  step->RecvLocalAsync(watch, {},
                       [&ended](const absl::Status& status, const Received&) { ended = status; });
  manager_.FailTask(PeerTask(), absl::UnavailableError("node 2 has died"));
  EXPECT_TRUE(ended.ok()) << ended;
  manager_.Cleanup(kStep);
  EXPECT_TRUE(absl::IsAborted(ended)) << ended;
}

TEST_F(EagerLinksTest, AWatch_IsNotListedAsPending) {
  const auto step = Step(/*begins=*/false);
  const RendezvousKey watch = RendezvousKey::StepEnd(kSelfTask, kSelf.incarnation, PeerTask());
  step->RecvLocalAsync(watch, {}, [](const absl::Status&, const Received&) {});
  int listed = 0;
  const auto count = [&listed](const PendingStepOp&) { ++listed; };
  step->ForEachPending(absl::ZeroDuration(), count);
  EXPECT_TRUE(step->Initialize(kSelfTask).ok());
  step->ForEachPending(absl::ZeroDuration(), count);
  EXPECT_EQ(listed, 0);
}

// Its program may never open it, and would then not close it either.
TEST_F(EagerLinksTest, AStepThatOnlyValuesHaveOpened_EndsWithTheProducers) {
  EXPECT_TRUE(Arrive(0).ok());
  ASSERT_EQ(manager_.step_count(), 1u);
  EXPECT_THAT(TakeTypes(), IsEmpty());
  RunTimers();
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kWatch));
  const absl::Status over = absl::AbortedError("step 7 is over");
  EXPECT_TRUE(inbox().OnWatchEnded(*channel_, EagerInbox::kWatchBit | 1, over).ok());
  // The producer's credit is free again.
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kStepRefused));
  EXPECT_EQ(manager_.step_count(), 0u);
  EXPECT_EQ(inbox().InnerTableSizes().at("eager_receiver.steps"), 0u);
  // It is not over: another producer's values may follow.
  EXPECT_TRUE(manager_.Find(kStep).ok());
}

TEST_F(EagerLinksTest, AStepThatOnlyValuesHaveOpened_EndsWithTheControlChannel) {
  EXPECT_TRUE(Arrive(0).ok());
  inbox().OnClosed(*channel_, absl::UnavailableError("closed"));
  EXPECT_EQ(manager_.step_count(), 0u);
}

TEST_F(EagerLinksTest, AStepThatIsOpen_KeepsItsValuesAfterTheProducersEnd) {
  EXPECT_TRUE(Arrive(0).ok());
  RunTimers();
  const auto step = Step();
  const absl::Status over = absl::AbortedError("step 7 is over");
  EXPECT_TRUE(inbox().OnWatchEnded(*channel_, EagerInbox::kWatchBit | 1, over).ok());
  bool has_value = false;
  step->RecvAsync(Key(kPeer, kSelf), {},
                  [&has_value](const absl::Status& status, const Received& received) {
                    has_value = status.ok() && received.tensor.bytes() == 8;
                  });
  EXPECT_TRUE(has_value);
  EXPECT_EQ(manager_.step_count(), 1u);
}

TEST_F(EagerLinksTest, AStepInWhichAReceiveIsDeferred_IsNotRemoved) {
  EXPECT_TRUE(Arrive(0).ok());
  RunTimers();
  bool has_ended = false;
  (*manager_.Find(kStep))
      ->RecvLocalAsync(Key(kSelf, kPeer), {},
                       [&](const absl::Status&, const Received&) { has_ended = true; });
  const absl::Status over = absl::AbortedError("step 7 is over");
  EXPECT_TRUE(inbox().OnWatchEnded(*channel_, EagerInbox::kWatchBit | 1, over).ok());
  EXPECT_EQ(manager_.step_count(), 1u);
  EXPECT_FALSE(has_ended);
  manager_.CleanupAll();
  EXPECT_TRUE(has_ended);
}

// The producer must not wait for a PUSH for ever.
TEST_F(EagerLinksTest, AStepThatIsForgotten_IsPushed) {
  EXPECT_TRUE(Arrive(0).ok());
  const std::string pull = Encoded([](ControlChannel& out) {
    return SendEagerPull(out, {EagerPullKind::kUntilMayPush, EagerScope::Step(kStep), {}});
  });
  ASSERT_TRUE(inbox().OnPull(*channel_, pull).ok());
  (*manager_.Find(kStep))->DropArrivals([](const RendezvousKey&) { return true; });
  manager_.ForgetIfUnused(kStep);
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kStepRefused, PeerMessageType::kEagerPush));
}

TEST_F(EagerLinksTest, ABatch_IsOneFrame) {
  const auto step = Step();
  EXPECT_THAT(SendMany(*step, {"a", "b", "a"}), Each(absl::StatusCode::kOk));
  EXPECT_THAT(channel_->types, ElementsAre(PeerMessageType::kEager));
  // The second time the text defines a number, which later values have.
  EXPECT_THAT(RecordsOf(channel_->bodies.at(0)), UnorderedElementsAre("a", "b", "a"));
  TakeTypes();
  EXPECT_THAT(SendMany(*step, {"a", "b", "b"}), Each(absl::StatusCode::kOk));
  EXPECT_THAT(RecordsOf(channel_->bodies.at(0)), UnorderedElementsAre("", "b", ""));
  TakeTypes();
  // Nothing waits for a further value.
  ASSERT_TRUE(step->Send(Key(kSelf, kPeer, "a"), Small()).ok());
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager));
}

TEST_F(EagerLinksTest, ALargeValueInABatch_IsAnnounced) {
  const auto step = Step();
  std::vector<RendezvousKey> keys;
  for (const char* const name : {"a", "large", "b"}) keys.push_back(Key(kSelf, kPeer, name));
  std::vector<SendItem> items = {
      {.key = &keys[0], .tensor = Small()},
      {.key = &keys[1], .tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({1 << 20}))},
      {.key = &keys[2], .tensor = Small()}};
  step->SendMany(absl::MakeSpan(items));
  EXPECT_THAT(channel_->types, Contains(PeerMessageType::kEagerPull).Times(1));
  std::vector<std::string> sent;
  for (size_t i = 0; i < channel_->types.size(); ++i) {
    if (channel_->types[i] != PeerMessageType::kEager) continue;
    for (std::string& name : RecordsOf(channel_->bodies[i])) sent.push_back(std::move(name));
  }
  EXPECT_THAT(sent, UnorderedElementsAre("a", "b"));
  EXPECT_TRUE(step->HasQueued(keys[1]));
}

TEST_F(EagerLinksTest, ABatchThatUsesUpTheCredit_IsSentBeforeThePull) {
  const auto step = Step();
  const std::vector<std::string> names(EagerLimits().step_values + 2, "a");
  EXPECT_THAT(SendMany(*step, names), Each(absl::StatusCode::kOk));
  const std::vector<PeerMessageType> types = TakeTypes();
  ASSERT_GE(types.size(), 2u);
  EXPECT_EQ(types.back(), PeerMessageType::kEagerPull);
  for (size_t i = 0; i + 1 < types.size(); ++i) EXPECT_EQ(types[i], PeerMessageType::kEager);
  EXPECT_TRUE(step->HasQueued(Key(kSelf, kPeer, "a")));
}

TEST_F(EagerLinksTest, ABatchInAStepThatIsFlushed_IsSentBeforeTheRequestForAcks) {
  const auto step = Step();
  step->StartFlush();
  EXPECT_THAT(SendMany(*step, {"a", "b"}), Each(absl::StatusCode::kOk));
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager, PeerMessageType::kAckNow));
  EXPECT_THAT(SendMany(*step, {"a", "b"}), Each(absl::StatusCode::kOk));
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager, PeerMessageType::kAckNow,
                                       PeerMessageType::kEager, PeerMessageType::kAckNow));
  step->EndFlush();
}

TEST_F(EagerLinksTest, ABatchInAStepThatIsOver_FailsAsAWhole) {
  const auto step = Step();
  step->StartAbort(absl::InternalError("aborted"));
  EXPECT_THAT(SendMany(*step, {"a", "b"}), Each(absl::StatusCode::kInternal));
  EXPECT_THAT(TakeTypes(), IsEmpty());
}

TEST_F(EagerLinksTest, ABatchOnAChannelThatFails_IsLost) {
  const auto step = Step();
  channel_->refusal = absl::UnavailableError("broken");
  SendMany(*step, {"a", "b"});
  outbox().OnClosed(*channel_, absl::UnavailableError("broken"));
  EXPECT_EQ(step->send_status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(step->operations().count(), 0);
}

// Those of a name in order, and each by the receive of its name.
TEST_F(EagerLinksTest, AFrameOfManyValues_CompletesReceivesInOrder) {
  const auto step = Step();
  std::vector<std::string> order;
  const auto receive = [&](const std::string& name) {
    step->RecvAsync(Key(kPeer, kSelf, name), {},
                    [&order, name](const absl::Status& status, const Received& received) {
                      ASSERT_TRUE(status.ok()) << status;
                      order.push_back(absl::StrCat(
                          name, "=", *static_cast<const uint8_t*>(received.tensor.data())));
                    });
  };
  for (const char* const name : {"b", "a", "a"}) receive(name);
  EXPECT_TRUE(ArriveMany({"a", "b", "c", "a", "a"}).ok());
  EXPECT_THAT(order, ElementsAre("a=0", "b=1", "a=3"));
  receive("a");
  receive("c");
  EXPECT_THAT(order, ElementsAre("a=0", "b=1", "a=3", "a=4", "c=2"));
}

TEST_F(EagerLinksTest, AFrameOfManyValuesForAStepThatIsOver_RefusesItOnce) {
  const auto step = Step();
  manager_.Cleanup(kStep);
  EXPECT_TRUE(ArriveMany({"a", "b", "c"}).ok());
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kStepRefused));
}

TEST_F(EagerLinksTest, AFrameOfManyValuesThatExceedsTheCredit_IsAnError) {
  const auto step = Step();
  const std::vector<std::string> names(EagerLimits().step_values / 2, "a");
  EXPECT_TRUE(ArriveMany(names).ok());
  EXPECT_TRUE(ArriveMany(names, EagerLimits().step_values / 2).ok());
  EXPECT_EQ(ArriveMany({"a", "a"}, EagerLimits().step_values).code(),
            absl::StatusCode::kInvalidArgument);
}

// In the order of the frame, although the values of a shard are taken together.
TEST_F(EagerLinksTest, AFrameOfManyValues_IsAcknowledgedByOneRange) {
  const auto step = Step();
  std::vector<std::string> names;
  for (int i = 0; i < 64; ++i) names.push_back(absl::StrCat("edge_", i));
  int received = 0;
  for (const std::string& name : names) {
    step->RecvAsync(Key(kPeer, kSelf, name), {},
                    [&received](const absl::Status& status, const Received&) {
                      received += status.ok() ? 1 : 0;
                    });
  }
  EXPECT_TRUE(ArriveMany(names).ok());
  EXPECT_EQ(received, 64);
  inbox().BeforeClose();
  ASSERT_THAT(channel_->types, ElementsAre(PeerMessageType::kEagerAck));
  const auto ranges = DecodeEagerAck(channel_->bodies.at(0));
  ASSERT_TRUE(ranges.ok());
  EXPECT_THAT(*ranges, ElementsAre(EagerRange{0, 64}));
}

TEST_F(EagerLinksTest, AValueOfAFrameThatItsReceiveRejects_IsRejectedAlone) {
  const auto step = Step();
  std::vector<absl::StatusCode> codes;
  for (const char* const name : {"a", "b", "c"}) {
    RecvArgs args;
    if (std::string(name) == "b") {
      args.destination = *Tensor::Allocate(DataType::kUint8, *Shape::Create({9}));
    }
    step->RecvAsync(
        Key(kPeer, kSelf, name), std::move(args),
        [&codes](const absl::Status& status, const Received&) { codes.push_back(status.code()); });
  }
  EXPECT_TRUE(ArriveMany({"a", "b", "c"}).ok());
  EXPECT_THAT(codes, ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument,
                                 absl::StatusCode::kOk));
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kRejected));
  inbox().BeforeClose();
  ASSERT_THAT(channel_->types, ElementsAre(PeerMessageType::kEagerAck));
  const auto ranges = DecodeEagerAck(channel_->bodies.at(0));
  ASSERT_TRUE(ranges.ok());
  EXPECT_THAT(*ranges, ElementsAre(EagerRange{0, 1}, EagerRange{2, 1}));
}

// The values before it are delivered, those after it are not: not even to a receive that waits for
// the one that is missing.
TEST_F(EagerLinksTest, AFrameWithAValueThatCannotBe_IsNotDeliveredBeyondIt) {
  const auto step = Step();
  const RendezvousKey key = Key(kPeer, kSelf);
  EagerFrameWriter writer(kStep, 0);
  for (const char value : {1, 2, 0}) {
    const std::string payload(1, value);
    EagerRecord record;
    record.name = 1;
    if (writer.count() == 0) record.text = key.text();
    record.header = {DataType::kBool, Shape(), 1};
    record.payload = payload;
    ASSERT_TRUE(writer.Append(record));
  }
  EXPECT_EQ(OnEager({std::string(writer.view())}).code(), absl::StatusCode::kInvalidArgument);
  int received = 0;
  for (int i = 0; i < 2; ++i) {
    step->RecvAsync(key, {}, [&received](const absl::Status& status, const Received& value) {
      if (!status.ok()) return;
      ++received;
      EXPECT_EQ(*static_cast<const uint8_t*>(value.tensor.data()), 1);
    });
  }
  EXPECT_EQ(received, 1);
}

// With names that have numbers, in the order of the receives: without the table.
TEST_F(EagerLinksTest, FramesThatArriveTogether_AreMatchedInOrder) {
  const auto step = Step();
  RecvMany(*step, {"a", "b", "c", "d"});
  EXPECT_TRUE(OnEager(Frames({{"a"}, {"b", "c"}, {"d"}})).ok());
  EXPECT_THAT(ended_, ElementsAre("a=0", "b=1", "c=2", "d=3"));
  ended_.clear();
  RecvMany(*step, {"a", "b", "c", "d"});
  EXPECT_TRUE(OnEager(Frames({{"a"}, {"b", "c"}, {"d"}})).ok());
  EXPECT_THAT(ended_, ElementsAre("a=4", "b=5", "c=6", "d=7"));
  // The first two are in order, the others are not, and the last one is not posted.
  ended_.clear();
  RecvMany(*step, {"a", "b", "c"});
  EXPECT_TRUE(OnEager(Frames({{"a"}, {"b", "d"}, {"c"}})).ok());
  EXPECT_THAT(ended_, ElementsAre("a=8", "b=9", "c=11"));
  RecvMany(*step, {"d"});
  EXPECT_THAT(ended_, ElementsAre("a=8", "b=9", "c=11", "d=10"));
  inbox().BeforeClose();
  ASSERT_THAT(channel_->types, ElementsAre(PeerMessageType::kEagerAck));
  const auto ranges = DecodeEagerAck(channel_->bodies.at(0));
  ASSERT_TRUE(ranges.ok());
  uint32_t acknowledged = 0;
  for (const EagerRange& range : *ranges) acknowledged += range.count;
  EXPECT_EQ(acknowledged, 12u);
}

// Else the callback of the first would cancel the last.
TEST_F(EagerLinksTest, FramesThatArriveTogether_AreMatchedBeforeTheFirstCallback) {
  const auto step = Step();
  RecvMany(*step, {"a", "b"});
  EXPECT_TRUE(OnEager(Frames({{"a"}, {"b"}})).ok());
  for (const bool are_together : {false, true}) {
    ended_.clear();
    CancellationToken cancellation;
    step->RecvAsync(
        Key(kPeer, kSelf, "a"), {},
        [&cancellation](const absl::Status&, const Received&) { cancellation.Cancel(); });
    RecvMany(*step, {"b"}, &cancellation);
    const std::vector<std::string> frames = Frames({{"a"}, {"b"}});
    if (are_together) {
      EXPECT_TRUE(OnEager(frames).ok());
      EXPECT_THAT(ended_, ElementsAre("b=5"));
    } else {
      EXPECT_TRUE(OnEager({frames[0]}).ok());
      EXPECT_TRUE(OnEager({frames[1]}).ok());
      EXPECT_THAT(ended_, ElementsAre("b: CANCELLED"));
      RecvMany(*step, {"b"});
    }
  }
}

// The same with names that have no numbers: the texts are compared with those of the receives.
TEST_F(EagerLinksTest, ValuesOfNamesWithoutNumbers_AreMatchedInOrder) {
  uses_texts_ = true;
  const auto step = Step();
  // The first value of a step goes by the table.
  RecvMany(*step, {"a"});
  EXPECT_TRUE(OnEager(Frames({{"a"}})).ok());
  ended_.clear();
  RecvMany(*step, {"b", "c", "d", "b"});
  EXPECT_TRUE(OnEager(Frames({{"b"}, {"c", "d"}, {"b"}})).ok());
  EXPECT_THAT(ended_, ElementsAre("b=1", "c=2", "d=3", "b=4"));
  ended_.clear();
  // Out of order, not posted, and of names that have a number as well.
  RecvMany(*step, {"a", "b", "c"});
  EXPECT_TRUE(OnEager(Frames({{"b"}, {"d", "a"}})).ok());
  uses_texts_ = false;
  EXPECT_TRUE(OnEager(Frames({{"c"}})).ok());
  EXPECT_THAT(ended_, ElementsAre("b=5", "a=7", "c=8"));
  RecvMany(*step, {"c", "d"});
  EXPECT_TRUE(OnEager(Frames({{"c"}})).ok());
  EXPECT_THAT(ended_, ElementsAre("b=5", "a=7", "c=8", "d=6", "c=9"));
}

// A node must not answer for another one, whose receives are in the same queue.
TEST_F(EagerLinksTest, TextOfAnotherNodesKey_IsAnError) {
  const auto step = Step();
  RecvMany(*step, {"a"});
  EXPECT_TRUE(OnEager(Frames({{"a"}})).ok());
  ended_.clear();
  for (const PeerId& other : {PeerId{3, 103}, PeerId{kPeer.node_id, kPeer.incarnation + 1}}) {
    const auto channel = std::make_shared<RecordingControlChannel>(other);
    EagerInbox* const others = eager_.InboxOf(other);
    others->OnOpen(channel);
    const RendezvousKey key = Key(other, kSelf, "a");
    RecvKeys(*step, {key});
    EagerFrameWriter writer(kStep, next_sequence_);
    const std::string payload(8, 'x');
    EagerRecord record;
    record.text = key.text();
    record.header = {DataType::kUint8, *Shape::Create({8}), payload.size()};
    record.payload = payload;
    ASSERT_TRUE(writer.Append(record));
    EXPECT_EQ(OnEager({std::string(writer.view())}).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(ended_, IsEmpty());
    others->OnClosed(*channel, absl::UnavailableError("closed"));
    EXPECT_THAT(ended_, ElementsAre("a: UNAVAILABLE"));
    ended_.clear();
    Reconnect();
  }
}

TEST_F(EagerLinksTest, MoreFramesThanAreReadAsOne_AreDelivered) {
  const auto step = Step();
  for (const bool is_posted : {true, false}) {
    std::vector<std::vector<std::string>> frames;
    std::vector<std::string> expected;
    std::vector<std::string> names;
    for (int i = 0; i < 150; ++i) {
      names.emplace_back(1, static_cast<char>('a' + i % 7));
      frames.push_back({names.back()});
      expected.push_back(
          absl::StrCat(names.back(), "=", (next_sequence_ + static_cast<uint32_t>(i)) % 256));
    }
    if (is_posted) RecvMany(*step, names);
    EXPECT_TRUE(OnEager(Frames(frames)).ok());
    if (!is_posted) RecvMany(*step, names);
    EXPECT_EQ(ended_, expected);
    ended_.clear();
  }
}

TEST_F(EagerLinksTest, FramesOfSeveralStepsThatArriveTogether_GoToTheirSteps) {
  const auto step = Step();
  auto other = *manager_.Find(kStep + 1);
  ASSERT_TRUE(other->Initialize(kSelfTask).ok());
  manager_.Cleanup(kStep + 2);
  RecvMany(*step, {"a", "b"});
  RecvMany(*other, {"a", "b"});
  std::vector<std::string> bodies;
  bodies.emplace_back(Frame({"a"}).view());
  bodies.emplace_back(Frame({"a"}, kStep + 1).view());
  bodies.emplace_back(Frame({"b"}, kStep + 1).view());
  bodies.emplace_back(Frame({"c"}, kStep + 2).view());
  bodies.emplace_back(Frame({"b"}).view());
  EXPECT_TRUE(OnEager(bodies).ok());
  EXPECT_THAT(ended_, ElementsAre("a=0", "a=1", "b=2", "b=4"));
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEagerAck, PeerMessageType::kStepRefused));
  other->StartAbort(absl::InternalError("aborted"));
}

// And the records of that one before the error.
TEST_F(EagerLinksTest, FramesBeforeAMalformedOne_AreDelivered) {
  const auto step = Step();
  for (const bool are_names_known : {false, true}) {
    for (const bool is_posted : {true, false}) {
      for (const size_t malformed : {0, 2, 3}) {
        SCOPED_TRACE(absl::StrCat(are_names_known, is_posted, malformed));
        if (are_names_known) {
          RecvMany(*step, {"a", "b", "c", "d"});
          EXPECT_TRUE(OnEager(Frames({{"a", "b", "c", "d"}})).ok());
          ended_.clear();
        }
        const uint32_t first = next_sequence_;
        std::vector<std::string> bodies = Frames({{"a"}, {"b"}, {"c"}, {"d"}});
        bodies[malformed].append(8, '\0');
        if (is_posted) RecvMany(*step, {"a", "b", "c", "d"});
        EXPECT_EQ(OnEager(bodies).code(), absl::StatusCode::kInvalidArgument);
        if (!is_posted) RecvMany(*step, {"a", "b", "c", "d"});
        std::vector<std::string> expected;
        const std::string names = "abcd";
        for (size_t i = 0; i <= malformed; ++i) {
          expected.push_back(absl::StrCat(names.substr(i, 1), "=", first + i));
        }
        EXPECT_EQ(ended_, expected);
        Reconnect();
        EXPECT_EQ(ended_.size(), 4u);
        ended_.clear();
      }
    }
  }
}

TEST_F(EagerLinksTest, FramesThatDoNotFollowEachOther_AreAnError) {
  const auto step = Step();
  RecvMany(*step, {"a", "b"});
  std::vector<std::string> bodies = Frames({{"a"}});
  ++next_sequence_;
  bodies.emplace_back(Frame({"b"}).view());
  EXPECT_EQ(OnEager(bodies).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ended_, ElementsAre("a=0"));
}

// Up to the first that acknowledges what was not sent, whose values are not delivered.
TEST_F(EagerLinksTest, AcknowledgementsInFramesThatArriveTogether_AreAllPassedOn) {
  const auto step = Step();
  RecvMany(*step, {"a", "b", "c", "d"});
  std::vector<std::string> bodies;
  for (const std::string name : {"a", "b", "c", "d"}) {
    EagerFrameWriter frame = Frame({name});
    if (name != "b") frame.Acknowledge({name == "d" ? kBadAcknowledgement : next_sequence_, 1});
    bodies.emplace_back(frame.view());
  }
  EXPECT_EQ(OnEager(bodies).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(acknowledged_,
              ElementsAre(EagerRange{1, 1}, EagerRange{3, 1}, EagerRange{kBadAcknowledgement, 1}));
  EXPECT_THAT(ended_, ElementsAre("a=0", "b=1", "c=2"));
}

// It must still be over when it is cleaned up.
TEST_F(EagerLinksTest, AStepThatWasAborted_IsNotRemoved) {
  EXPECT_TRUE(Arrive(0).ok());
  (*manager_.Find(kStep))->StartAbort(absl::InternalError("aborted"));
  inbox().OnClosed(*channel_, absl::UnavailableError("closed"));
  EXPECT_EQ(manager_.step_count(), 1u);
}

TEST_F(EagerLinksTest, ReceivesPostedTogether_TakeWhatHasArrivedAndWaitForTheRest) {
  const auto step = Step();
  EXPECT_TRUE(ArriveMany({"a", "b", "a"}).ok());
  RecvMany(*step, {"a", "c", "b", "a", "a"});
  EXPECT_THAT(ended_, ElementsAre("a=0", "b=1", "a=2"));
  ended_.clear();
  EXPECT_TRUE(ArriveMany({"c", "a"}, 3).ok());
  EXPECT_THAT(ended_, ElementsAre("c=0", "a=1"));
  inbox().BeforeClose();
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEagerAck));
}

// Each is requested, and PUSH comes after the requests.
TEST_F(EagerLinksTest, ReceivesPostedTogetherInAPulledStep_AreRequested) {
  const auto step = Step();
  const std::string pull = Encoded([](ControlChannel& out) {
    return SendEagerPull(out, {EagerPullKind::kUntilFree, EagerScope::Step(kStep), {}});
  });
  RecvMany(*step, {"a"});
  ASSERT_TRUE(inbox().OnPull(*channel_, pull).ok());
  EXPECT_EQ(fetcher_.fetches.size(), 1u);
  TakeTypes();
  ASSERT_TRUE(
      inbox()
          .OnPull(*channel_, Encoded([](ControlChannel& out) {
            return SendEagerPull(out, {EagerPullKind::kUntilMayPush, EagerScope::All(), {}});
          }))
          .ok());
  RecvMany(*step, {"a", "b", "a"});
  EXPECT_EQ(fetcher_.fetches.size(), 4u);
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_THAT(TakeTypes(), IsEmpty());
}

TEST_F(EagerLinksTest, ReceivesPostedTogether_EndByCancellationDeadlineAndAbort) {
  const auto step = Step();
  CancellationToken cancellation;
  RecvMany(*step, {"a", "b"}, &cancellation);
  cancellation.Cancel();
  EXPECT_THAT(ended_, UnorderedElementsAre("a: CANCELLED", "b: CANCELLED"));
  ended_.clear();
  // Cancelled before.
  RecvMany(*step, {"a", "b"}, &cancellation);
  EXPECT_THAT(ended_, ElementsAre("a: CANCELLED", "b: CANCELLED"));
  ended_.clear();
  RecvMany(*step, {"a", "b"});
  clock_.Advance(absl::Seconds(11));
  step->Expire();
  EXPECT_THAT(ended_, UnorderedElementsAre("a: DEADLINE_EXCEEDED", "b: DEADLINE_EXCEEDED"));
  ended_.clear();
  RecvMany(*step, {"a"});
  step->StartAbort(absl::InternalError("aborted"));
  RecvMany(*step, {"b", "c"});
  EXPECT_THAT(ended_, ElementsAre("a: INTERNAL", "b: INTERNAL", "c: INTERNAL"));
}

TEST_F(EagerLinksTest, ReceivesPostedTogether_FailAlone) {
  const auto step = Step();
  ASSERT_TRUE(step->Send(Key(kSelf, kSelf, "local"), Small()).ok());
  EXPECT_TRUE(ArriveMany({"a"}).ok());
  RecvKeys(*step,
           {Key(kPeer, kPeer, "elsewhere"), Key(kSelf, kSelf, "local"), Key(kPeer, kSelf, "a")});
  EXPECT_THAT(ended_, UnorderedElementsAre("elsewhere: INVALID_ARGUMENT", "local=1", "a=0"));
}

// Each has a number while it is pulled.
TEST_F(EagerLinksTest, LargeValuesOfAnyNumberOfNames_DoNotTurnTheProtocolOff) {
  const auto step = Step();
  const Tensor large = *Tensor::Allocate(DataType::kUint8, *Shape::Create({1 << 20}));
  const auto count = static_cast<int>(EagerLimits().names) * 3 / 2;
  for (int i = 0; i < count; ++i) {
    const RendezvousKey key = Key(kSelf, kPeer, absl::StrCat("edge_", i));
    ASSERT_TRUE(step->Send(key, large).ok());
    // Its request.
    step->RecvLocalAsync(key, {}, [](const absl::Status&, const Received&) {});
    AnswerMayPush();
  }
  EXPECT_LE(outbox().InnerTableSizes().at("eager_sender.names"), EagerLimits().names);
  TakeTypes();
  ASSERT_TRUE(step->Send(Key(kSelf, kPeer, "small"), Small()).ok());
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager));
}

// A request that arrives, with the PUSH after it, when a sender has already looked for one, must be
// answered: the consumer takes no other value for it.
TEST_F(EagerLinksTest, APushWhileValuesAreSent_LeavesNoRequestUnanswered) {
  HeldLinks links(eager_);
  fetcher_.links = &links;
  const auto step = Step();
  const RendezvousKey held = Key(kSelf, kPeer, "held");
  // Waits for the lock that is held, with the second one's shard unlocked.
  const RendezvousKey first = KeyInShardOf(held, /*same=*/true);
  const RendezvousKey second = KeyInShardOf(held, /*same=*/false);
  const auto request = [&step, &second](bool& answered) {
    step->RecvLocalAsync(second, {}, [&answered](const absl::Status& status, const Received&) {
      answered = status.ok();
    });
  };
  // The second one is to be requested, until the consumer answers.
  bool answered = false;
  ASSERT_TRUE(
      step->Send(second, *Tensor::Allocate(DataType::kUint8, *Shape::Create({1 << 20}))).ok());
  request(answered);
  std::string push;
  for (int i = 0; i < 100 && push.empty(); ++i) {
    TakeTypes();
    ASSERT_TRUE(step->Send(second, Small()).ok());
    request(answered);
    if (channel_->types.empty()) continue;
    const auto pull = DecodeEagerPull(channel_->bodies[0]);
    ASSERT_TRUE(pull.ok());
    push = Encoded([&pull](ControlChannel& out) { return SendEagerPush(out, pull->scope); });
  }
  ASSERT_TRUE(answered);
  TakeTypes();
  answered = false;
  std::optional<Thread> sender;
  links.while_held = [&] {
    sender.emplace("sender", [&] {
      std::vector<SendItem> items = {{.key = &first, .tensor = Small()},
                                     {.key = &second, .tensor = Small()}};
      step->SendMany(absl::MakeSpan(items));
    });
    // It has looked for receives by then, or finds the request later.
    absl::SleepFor(absl::Milliseconds(100));
    request(answered);
    EXPECT_TRUE(outbox().OnPush(*channel_, push).ok());
  };
  ASSERT_TRUE(step->Send(held, Small()).ok());
  sender->Join();
  EXPECT_TRUE(answered) << "the value was sent eagerly, and its request still waits";
  EXPECT_THAT(TakeTypes(), ElementsAre(PeerMessageType::kEager));
}

}  // namespace
}  // namespace ferry
