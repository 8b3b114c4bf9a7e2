// SPDX-License-Identifier: Apache-2.0
// Frames of the eager protocol, as any peer may send them, at both ends of a control channel, among
// the calls of a program. Each operation is one byte that selects it and one that is its parameter;
// some take a body too.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "base/cancellation_token.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/table_sizes.h"
#include "rendezvous/peer/eager_peers.h"
#include "rendezvous/peer/peer_protocol.h"
#include "rendezvous/rendezvous_manager.h"

namespace ferry {
namespace {

constexpr PeerId kSelf = {1, 101};
constexpr PeerId kPeer = {2, 102};
constexpr EagerLimits kLimits = {2, 100, 3, 150, 3, 600};

// Keeps the last frame, and whether it was closed.
class Channel final : public ControlChannel {
 public:
  absl::Status Send(uint16_t type, absl::Span<const absl::string_view> parts,
                    absl::Span<const int>) override {
    if (!closed.ok()) return closed;
    if (refuses) return ControlQueueIsFull(kPeer, 1, 1, 1);
    body.clear();
    for (const absl::string_view part : parts) body.append(part.data(), part.size());
    return absl::OkStatus();
  }
  void Close(const absl::Status& why) override { closed.Update(why); }
  const PeerId& peer() const override { return kPeer; }
  bool passes_descriptors() const override { return true; }
  size_t queued_bytes() const override { return queued; }
  std::string Describe() const override { return "fuzzed"; }

  std::string body;
  absl::Status closed;
  bool refuses = false;
  size_t queued = 0;
};

class Process final : public RemoteFetcher {
 public:
  Process() {
    context_.self.peer = kSelf;
    context_.transports = &transports_;
    context_.manager = &manager_;
    context_.clock = &clock_;
    context_.eager = &eager_;
    eager_.set_run_after([this](absl::Duration, absl::AnyInvocable<void()> call) {
      timers_.push_back(std::move(call));
    });
    Open();
  }

  ~Process() override {
    for (const int64_t step_id : {0, 1, 2}) manager_.Cleanup(step_id);
    Close(absl::UnavailableError("the peer has gone"));
    std::vector<RecvCallback> fetches = std::move(fetches_);
    for (RecvCallback& done : fetches) std::move(done)(absl::UnavailableError("gone"), {});
    // Steps that only the peer has named.
    manager_.CleanupAll();
    FERRY_CHECK(receives_ == 0);
    FERRY_CHECK(NonEmptyTables(eager_.InnerTableSizes()).empty());
    FERRY_CHECK(NonEmptyTables(manager_.InnerTableSizes(), {"manager.finished"}).empty());
    timers_.clear();
  }

  std::shared_ptr<RemoteFetch> Fetch(int64_t, const RendezvousKey&, const RecvArgs&,
                                     RecvCallback done) override {
    fetches_.push_back(std::move(done));
    return nullptr;
  }
  EagerLinks* eager_links() override { return &eager_; }

  // Takes what it needs from `input`.
  void Act(absl::string_view& input) {
    const uint8_t operation = Take(input);
    const uint8_t parameter = Take(input);
    switch (operation % 24) {
      case 0:
        return Send(parameter);
      case 1:
        return Receive(parameter);
      case 2:
        return static_cast<void>(cancellation_.Cancel());
      case 3:
        return manager_.Cleanup(parameter % 3);
      case 4:
        if (const auto step = Step(parameter)) step->StartAbort(absl::InternalError("aborted"));
        return;
      case 5:
        if (const auto step = Step(parameter)) step->StartFlush();
        return;
      case 6:
        return RunTimers();
      case 7:
        Close(absl::UnavailableError("closed"));
        return Open();
      case 8:
        channel_->queued = parameter % 2 == 0 ? 0 : size_t{1} << 20;
        return;
      case 9:
        channel_->refuses = parameter % 8 == 0;
        return;
      case 10:
        return Answer();
      // Frames with any body.
      case 11: {
        const auto type = static_cast<PeerMessageType>(13 + parameter % 10);
        return Deliver(type, TakeBody(input));
      }
      // Legal ones, at any time.
      case 12:
      case 13:
      case 14:
        return DeliverValues(parameter, Take(input));
      case 15:
      case 16:
        return DeliverPull(parameter, Take(input));
      case 17:
        SendEagerPush(out_, Scope(parameter)).IgnoreError();
        return Deliver(PeerMessageType::kEagerPush, out_.body);
      case 18: {
        const EagerRange range = {parameter % 8u, static_cast<uint16_t>(1 + Take(input) % 4)};
        SendEagerAck(out_, {&range, 1}).IgnoreError();
        return Deliver(PeerMessageType::kEagerAck, out_.body);
      }
      case 19:
        SendStepRefused(out_, parameter % 3).IgnoreError();
        return Deliver(PeerMessageType::kStepRefused, out_.body);
      case 20:
        SendAckNow(out_, parameter % 3).IgnoreError();
        return Deliver(PeerMessageType::kAckNow, out_.body);
      case 21:
        return Finish(eager_.OutboxOf(kPeer)->OnRejected(
            *channel_, kEagerRejectedBit | parameter % 8, absl::InvalidArgumentError("wrong")));
      case 22:
        return Finish(eager_.InboxOf(kPeer)->OnWatchEnded(
            *channel_, EagerInbox::kWatchBit | parameter % 4, absl::AbortedError("over")));
      default:
        eager_.OutboxOf(kPeer)->FindName(*channel_, parameter);
        eager_.InboxOf(kPeer)->NumberForRequest(*channel_, Key(kPeer, kSelf, parameter));
        eager_.ForEachTransfer(absl::ZeroDuration(), [](const PendingStepOp&) {});
        return;
    }
  }

 private:
  static uint8_t Take(absl::string_view& input) {
    if (input.empty()) return 0;
    const auto byte = static_cast<uint8_t>(input.front());
    input.remove_prefix(1);
    return byte;
  }
  static std::string TakeBody(absl::string_view& input) {
    const size_t wanted = Take(input);
    const size_t size = std::min(wanted, input.size());
    std::string body(input.substr(0, size));
    input.remove_prefix(size);
    return body;
  }
  static RendezvousKey Key(const PeerId& from, const PeerId& to, uint8_t number) {
    const auto device = [](const PeerId& peer) {
      return absl::StrCat("/job:worker/replica:0/task:", peer.node_id, "/device:CPU:0");
    };
    return *RendezvousKey::Parse(RendezvousKey::Text(device(from), from.incarnation, device(to),
                                                     absl::StrCat("edge", number % 4)));
  }
  static EagerScope Scope(uint8_t parameter) {
    switch (parameter % 3) {
      case 0:
        return EagerScope::All();
      case 1:
        return EagerScope::Step(parameter / 3 % 3);
      default:
        return EagerScope::Name(parameter / 3 % 5);
    }
  }

  std::shared_ptr<RemoteRendezvous> Step(uint8_t parameter) {
    const auto step = manager_.Find(parameter % 3);
    if (!step.ok()) return nullptr;
    if (parameter % 16 != 0) {
      FERRY_CHECK((*step)->Initialize({.job = "worker", .replica = 0, .task = kSelf.node_id}).ok());
    }
    return *step;
  }

  void Send(uint8_t parameter) {
    const auto step = Step(parameter);
    if (step == nullptr) return;
    const int64_t bytes = parameter % 5 == 0 ? 20'000 : parameter % 60;
    Tensor tensor = *Tensor::Allocate(DataType::kUint8, *Shape::Create({bytes}));
    if (bytes > 0) std::memset(tensor.mutable_data(), parameter, tensor.bytes());
    step->Send(Key(kSelf, kPeer, parameter / 3), std::move(tensor)).IgnoreError();
    CheckClosed();
  }

  void Receive(uint8_t parameter) {
    const auto step = Step(parameter);
    if (step == nullptr) return;
    RecvArgs args;
    if (parameter % 4 == 1) args.cancellation = &cancellation_;
    if (parameter % 7 == 1) {
      args.destination = *Tensor::Allocate(DataType::kUint8, *Shape::Create({parameter % 60}));
    }
    ++receives_;
    step->RecvAsync(Key(kPeer, kSelf, parameter / 3), std::move(args),
                    [this](const absl::Status&, const Received&) { --receives_; });
    CheckClosed();
  }

  // One of the fetches.
  void Answer() {
    if (fetches_.empty()) return;
    RecvCallback done = std::move(fetches_.back());
    fetches_.pop_back();
    std::move(done)(absl::NotFoundError("nothing"), {});
    CheckClosed();
  }

  void RunTimers() {
    std::vector<absl::AnyInvocable<void()>> due;
    due.swap(timers_);
    for (auto& each : due) each();
    CheckClosed();
  }

  void DeliverValues(uint8_t parameter, uint8_t content) {
    // Sometimes one too many, or one twice.
    EagerFrameWriter writer(parameter % 3, next_value_ + (parameter >= 250 ? 1 : 0));
    const std::string payload(content % 50, 'x');
    std::string text;
    for (int i = 0; i <= content / 128; ++i) {
      EagerRecord record;
      record.name = parameter / 3 % 5;
      text = Key(kPeer, kSelf, parameter / 3).text();
      if (record.name == 0 || !defined_.contains(record.name) || content % 8 == 0) {
        record.text = text;
        defined_.insert(record.name);
      }
      record.is_dead = content % 11 == 0;
      if (!record.is_dead) {
        record.header = {DataType::kUint8, *Shape::Create({static_cast<int64_t>(payload.size())}),
                         payload.size()};
        record.payload = payload;
      }
      if (writer.Append(record)) ++next_value_;
    }
    arrived_.emplace_back(writer.view());
    // Else it arrives with the next one.
    if (content % 5 != 0) DeliverArrived();
  }
  // EAGER frames that have arrived together, each in memory of exactly its size.
  void DeliverArrived() {
    if (arrived_.empty()) return;
    std::vector<std::vector<char>> bodies;
    std::vector<ControlFrame> frames;
    for (const std::string& each : std::exchange(arrived_, {})) {
      const std::vector<char>& body = bodies.emplace_back(each.begin(), each.end());
      frames.push_back({.body = {body.data(), body.size()}});
    }
    Finish(eager_.InboxOf(kPeer)->OnEager(*channel_, frames, [&](const EagerRange& range) {
      return eager_.OutboxOf(kPeer)->OnAcknowledged(*channel_, range);
    }));
  }

  void DeliverPull(uint8_t parameter, uint8_t content) {
    EagerPullMessage pull;
    pull.kind = static_cast<EagerPullKind>(content % 3);
    pull.scope = Scope(parameter);
    const std::string text = Key(kPeer, kSelf, content).text();
    if (pull.scope.kind == EagerScopeKind::kName && content % 2 == 0) {
      pull.definition = text;
      defined_.insert(pull.scope.name);
    }
    if (SendEagerPull(out_, pull).ok()) Deliver(PeerMessageType::kEagerPull, out_.body);
  }

  void Deliver(PeerMessageType type, const std::string& bytes) {
    if (type == PeerMessageType::kEager) {
      arrived_.push_back(bytes);
      return DeliverArrived();
    }
    DeliverArrived();
    // Memory of exactly that size.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    const absl::string_view body(exact.data(), exact.size());
    EagerInbox& inbox = *eager_.InboxOf(kPeer);
    EagerOutbox& outbox = *eager_.OutboxOf(kPeer);
    switch (type) {
      case PeerMessageType::kEagerPull:
        return Finish(inbox.OnPull(*channel_, body));
      case PeerMessageType::kEagerPush:
        return Finish(outbox.OnPush(*channel_, body));
      case PeerMessageType::kEagerAck:
        return Finish(outbox.OnAck(*channel_, body));
      case PeerMessageType::kStepRefused:
        return Finish(outbox.OnStepRefused(*channel_, body));
      case PeerMessageType::kAckNow:
        return Finish(inbox.OnAckNow(*channel_, body));
      case PeerMessageType::kNamedRequest:
        if (const auto request = DecodeNamedRequest(body); request.ok()) {
          outbox.FindName(*channel_, request->name);
        }
        return;
      default:
        DecodeWatch(body).IgnoreError();
    }
  }

  // As a control channel does with the status of a frame.
  void Finish(const absl::Status& status) {
    FERRY_CHECK(status.ok() || absl::IsInvalidArgument(status));
    channel_->closed.Update(status);
    CheckClosed();
  }
  void CheckClosed() {
    if (channel_->closed.ok()) return;
    Close(channel_->closed);
    Open();
  }

  void Open() {
    channel_ = std::make_shared<Channel>();
    arrived_.clear();
    next_value_ = 0;
    defined_.clear();
    EagerOutbox* const outbox = eager_.OutboxOf(kPeer);
    outbox->OnOpen(channel_, kLimits, {.in_arena = 2048, .elsewhere = kMaxEagerBytes});
    eager_.SetConnected(kPeer, *channel_, outbox);
    eager_.InboxOf(kPeer)->OnOpen(channel_);
  }
  void Close(const absl::Status& why) {
    channel_->closed.Update(why);
    EagerOutbox* const outbox = eager_.OutboxOf(kPeer);
    outbox->OnClosed(*channel_, why);
    FERRY_CHECK(outbox->channel() == nullptr);
    FERRY_CHECK(eager_.OnDisconnected(kPeer, *channel_) == nullptr);
    eager_.InboxOf(kPeer)->OnClosed(*channel_, why);
    // A channel that has ended is answered nothing.
    FERRY_CHECK(eager_.InboxOf(kPeer)->OnAckNow(*channel_, std::string(8, '\0')).ok());
  }

  FakeClock clock_;
  TransportList transports_;
  TransferContext context_;
  EagerPeers eager_{context_, kLimits};
  // Before what may still end with it.
  CancellationToken cancellation_;
  int64_t receives_ = 0;
  std::vector<RecvCallback> fetches_;
  std::vector<absl::AnyInvocable<void()>> timers_;
  RendezvousManager manager_{clock_, *this};
  std::shared_ptr<Channel> channel_;
  // Encodes frames.
  Channel out_;
  // EAGER frames that have not been read.
  std::vector<std::string> arrived_;
  uint32_t next_value_ = 0;
  std::set<uint32_t> defined_;
};

}  // namespace
}  // namespace ferry

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ferry::Process process;
  absl::string_view input(reinterpret_cast<const char*>(data), size);
  for (int i = 0; i < 300 && !input.empty(); ++i) process.Act(input);
  return 0;
}
