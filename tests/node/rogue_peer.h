// SPDX-License-Identifier: Apache-2.0
// RoguePeer: a process of the job that has the token, real transports, and no manners.
#ifndef FERRY_TESTS_NODE_ROGUE_PEER_H_
#define FERRY_TESTS_NODE_ROGUE_PEER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "base/status_macros.h"
#include "rendezvous/peer/peer_protocol.h"
#include "tests/node/engine_pair.h"
#include "transport/transports.h"

namespace ferry {

// Sends HELLO like every node. The test controls its later answers and requests.
class RoguePeer final {
 public:
  // One end of a control channel. All calls on the loop, except for `channel`.
  class End;
  // At each REQUEST: answered with End::SendRts or not at all.
  using OnRequest = std::function<void(End& end, uint64_t id)>;
  // At each descriptor: fetched or not.
  using OnReadyToSend = std::function<void(End& end, const ReadyToSendMessage& rts)>;

  RoguePeer(Directory& directory, int node, OnRequest on_request, OnReadyToSend on_rts = {},
            bool over_tcp = false, const std::vector<TransportFactory>& extra_transports = {});
  ~RoguePeer();

  const Endpoint& self() const { return self_; }
  HostArena& arena() { return *arena_; }
  TransportList& transports() { return transports_; }
  // Handles data connections from now on, instead of its transports.
  void TakeData(std::function<void(DataConnection)> take) {
    absl::MutexLock lock(&mu_);
    take_data_ = std::move(take);
  }
  // From 1 on.
  int NumberOf(absl::string_view transport) const;
  // Opens a control channel, and calls `then` when both have sent HELLO.
  void Open(const Endpoint& peer, bool over_tcp, std::function<void(End& end)> then);
  // Runs it on the loop, and waits for it.
  void Do(absl::AnyInvocable<void() &&> function);
  // Control channels that have ended, and the reason of the last.
  int ended() const;
  absl::Status why() const;
  RendezvousKey KeyTo(const EngineEnd& end, const std::string& name) const;

 private:
  friend class End;
  void OnEnded(const absl::Status& why);

  const OnRequest on_request_;
  const OnReadyToSend on_rts_;
  std::shared_ptr<HostArena> arena_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<CopyPool> copier_ = std::make_unique<CopyPool>();
  std::unique_ptr<ConnectionManager> connection_manager_;
  TransportList transports_;
  Endpoint self_;
  mutable absl::Mutex mu_;
  int ended_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<End>> ends_ ABSL_GUARDED_BY(mu_);
  std::function<void(DataConnection)> take_data_ ABSL_GUARDED_BY(mu_);
};

class RoguePeer::End final : public ControlHandler, public std::enable_shared_from_this<End> {
 public:
  End(RoguePeer& rogue, std::function<void(End&)> then, bool is_opener)
      : rogue_(rogue), then_(std::move(then)), is_opener_(is_opener) {}

  ControlChannel& channel() { return *channel_; }
  TransportSender& sender(int number) { return *senders_[static_cast<size_t>(number) - 1]; }
  TransportReceiver& receiver(int number) { return *receivers_[static_cast<size_t>(number) - 1]; }
  // Offers `tensor` by the transport, sends the transfer descriptor after `change` has seen it, and
  // calls `then`.
  void SendRts(uint64_t id, int number, const Tensor& tensor,
               std::function<void(ReadyToSendMessage&, std::string& body)> change = {},
               std::function<void()> then = {}) {
    sender(number).Expose(id, tensor, {}, [=, this](absl::StatusOr<TransferDescriptor> descriptor) {
      FERRY_CHECK(descriptor.ok());
      ReadyToSendMessage rts = RtsOf(id, number, tensor);
      std::string body = descriptor->body;
      if (change) change(rts, body);
      rts.body = body;
      SendReadyToSend(*channel_, rts, descriptor->descriptors).IgnoreError();
      if (then) then();
    });
  }
  // For an id that was never exposed.
  void SendRtsOfNothing(uint64_t id, int number, const Tensor& like, const std::string& body) {
    ReadyToSendMessage rts = RtsOf(id, number, like);
    rts.body = body;
    SendReadyToSend(*channel_, rts, {}).IgnoreError();
  }

  void OnOpen(std::shared_ptr<ControlChannel> channel) override {
    channel_ = std::move(channel);
    if (is_opener_) SayHello();
  }
  absl::Status OnFrame(uint16_t type, absl::string_view body,
                       absl::Span<UniqueFd> descriptors) override {
    switch (static_cast<PeerMessageType>(type)) {
      case PeerMessageType::kHello:
        return OnHello(body);
      case PeerMessageType::kRequest: {
        FERRY_ASSIGN_OR_RETURN(const RequestMessage request, DecodeRequest(body));
        if (rogue_.on_request_) rogue_.on_request_(*this, request.id);
        return absl::OkStatus();
      }
      case PeerMessageType::kReadyToSend: {
        FERRY_ASSIGN_OR_RETURN(const ReadyToSendMessage rts, DecodeReadyToSend(body));
        if (rogue_.on_rts_) rogue_.on_rts_(*this, rts);
        return absl::OkStatus();
      }
      case PeerMessageType::kSenderControl: {
        FERRY_ASSIGN_OR_RETURN(const auto announcement, DecodeTransportControl(body));
        return receiver(announcement.transport).OnControlMessage(announcement.body, descriptors);
      }
      case PeerMessageType::kAck: {
        FERRY_ASSIGN_OR_RETURN(const uint64_t id, DecodeId(body));
        for (const auto& each : senders_) each->Release(id);
        return absl::OkStatus();
      }
      default:
        return absl::OkStatus();
    }
  }
  // The control channel keeps this as long as it has not ended, which the loop may not have come
  // to.
  void Drop() {
    senders_.clear();
    receivers_.clear();
    channel_ = nullptr;
  }
  void OnClosed(const absl::Status& why) override {
    for (const auto& each : senders_) each->Abort(why);
    for (const auto& each : receivers_) each->Abort(why);
    rogue_.OnEnded(why);
  }

 private:
  static ReadyToSendMessage RtsOf(uint64_t id, int number, const Tensor& tensor) {
    ReadyToSendMessage rts;
    rts.id = id;
    rts.transport = static_cast<uint8_t>(number);
    rts.header = {tensor.dtype(), tensor.shape(), tensor.bytes(), {}};
    return rts;
  }
  void SayHello() {
    const Endpoint& self = rogue_.self_;
    SendHello(*channel_, {self.boot_id, self.host_name, self.channels.tcp, {}, self.transports})
        .IgnoreError();
  }
  absl::Status OnHello(absl::string_view body) {
    FERRY_ASSIGN_OR_RETURN(HelloMessage hello, DecodeHello(body));
    Endpoint peer;
    peer.peer = channel_->peer();
    peer.boot_id = std::move(hello.boot_id);
    peer.channels.tcp = std::move(hello.tcp);
    peer.transports = std::move(hello.transports);
    int number = 0;
    for (const auto& transport : rogue_.transports_) {
      ++number;
      senders_.push_back(transport->CreateSender(peer));
      senders_.back()->SetControlChannel(
          [channel = channel_, number](absl::string_view said, absl::Span<const int> descriptors) {
            return SendSenderControl(*channel, {static_cast<uint8_t>(number), said}, descriptors);
          });
      receivers_.push_back(transport->CreateReceiver(peer, [channel = channel_](uint64_t id) {
        (void)SendId(*channel, PeerMessageType::kAck, id);
      }));
    }
    if (!is_opener_) SayHello();
    if (then_) std::exchange(then_, nullptr)(*this);
    return absl::OkStatus();
  }

  RoguePeer& rogue_;
  std::function<void(End&)> then_;
  const bool is_opener_;
  std::shared_ptr<ControlChannel> channel_;
  std::vector<std::shared_ptr<TransportSender>> senders_;
  std::vector<std::shared_ptr<TransportReceiver>> receivers_;
};

inline RoguePeer::RoguePeer(Directory& directory, int node, OnRequest on_request,
                            OnReadyToSend on_rts, bool over_tcp,
                            const std::vector<TransportFactory>& extra_transports)
    : on_request_(std::move(on_request)), on_rts_(std::move(on_rts)) {
  arena_ = *HostArena::Create({});
  loop_ = *EventLoop::Create({});
  self_.peer = {node, 1000u + static_cast<uint64_t>(node)};
  self_.boot_id = "one machine";
  ConnectionManagerOptions options;
  options.handshake.self = self_.peer;
  options.handshake.token = "token";
  options.tcp_listen = "127.0.0.1:0";
  options.unix_listen = !over_tcp;
  connection_manager_ = *ConnectionManager::Create(
      *loop_, options,
      [this](const PeerId&) {
        auto end = std::make_shared<End>(*this, nullptr, false);
        absl::MutexLock lock(&mu_);
        ends_.push_back(end);
        return end;
      },
      [this](DataConnection connection) {
        std::function<void(DataConnection)> take;
        {
          absl::MutexLock lock(&mu_);
          take = take_data_;
        }
        if (take) return take(std::move(connection));
        for (const auto& each : transports_) {
          if (each->OnDataConnection(connection)) return;
        }
      });
  TransportEnvironment environment;
  environment.loop = loop_.get();
  environment.connection_manager = connection_manager_.get();
  environment.arena = arena_;
  environment.copier = copier_.get();
  environment.node_id = node;
  environment.incarnation = self_.peer.incarnation;
  std::vector<TransportFactory> factories = BuiltinTransports({});
  factories.insert(factories.end(), extra_transports.begin(), extra_transports.end());
  transports_ = *MakeTransports(environment, factories);
  self_.transports = DescribeTransports(transports_);
  self_.channels.unix_name = connection_manager_->unix_name();
  self_.channels.tcp = {absl::StrCat("127.0.0.1:", connection_manager_->tcp_port())};
  FERRY_CHECK(connection_manager_->Start().ok());
  directory.Publish(self_);
}

inline RoguePeer::~RoguePeer() {
  connection_manager_->Close();
  std::vector<std::shared_ptr<End>> ends;
  {
    absl::MutexLock lock(&mu_);
    ends = ends_;
  }
  Do([&] {
    for (const auto& each : ends) each->channel().Close(absl::CancelledError("the rogue leaves"));
  });
  for (const auto& transport : transports_) (void)transport->Stop(absl::CancelledError("leaving"));
  loop_->Stop();
  for (const auto& each : ends) each->Drop();
  copier_.reset();
  ends_.clear();
  ends.clear();
  transports_.clear();
}

inline int RoguePeer::NumberOf(absl::string_view transport) const {
  for (size_t i = 0; i < transports_.size(); ++i) {
    if (transports_[i]->name() == transport) return static_cast<int>(i) + 1;
  }
  return 0;
}

inline void RoguePeer::Open(const Endpoint& peer, bool over_tcp, std::function<void(End&)> then) {
  auto end = std::make_shared<End>(*this, std::move(then), true);
  {
    absl::MutexLock lock(&mu_);
    ends_.push_back(end);
  }
  connection_manager_->Connect(peer.peer, peer.channels, !over_tcp, end);
}

inline void RoguePeer::Do(absl::AnyInvocable<void() &&> function) {
  absl::Notification done;
  loop_->Post([&] {
    std::move(function)();
    done.Notify();
  });
  done.WaitForNotification();
}

inline void RoguePeer::OnEnded(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  ++ended_;
  why_ = why;
}

inline int RoguePeer::ended() const {
  absl::MutexLock lock(&mu_);
  return ended_;
}

inline absl::Status RoguePeer::why() const {
  absl::MutexLock lock(&mu_);
  return why_;
}

inline RendezvousKey RoguePeer::KeyTo(const EngineEnd& end, const std::string& name) const {
  const auto device = [](int node) {
    return absl::StrCat("/job:worker/replica:0/task:", node, "/device:CPU:0");
  };
  return *RendezvousKey::Parse(RendezvousKey::Text(device(self_.peer.node_id),
                                                   self_.peer.incarnation,
                                                   device(end.engine->self().peer.node_id), name));
}

}  // namespace ferry

#endif  // FERRY_TESTS_NODE_ROGUE_PEER_H_
