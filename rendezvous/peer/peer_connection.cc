// SPDX-License-Identifier: Apache-2.0
// HELLO exchange, checksums, and dispatch of frames.
#include "rendezvous/peer/peer_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/peer/eager_peers.h"
#include "rendezvous/peer/frame_checksum.h"

namespace ferry {

PeerConnection::PeerConnection(const TransferContext& context,
                               std::shared_ptr<PeerConnectionObserver> observer, const PeerId& peer,
                               bool is_opener)
    : context_(context),
      observer_(std::move(observer)),
      peer_(peer),
      is_opener_(is_opener),
      // The opener knows that a checksummed HELLO gets a checksummed answer.
      expects_checksums_(is_opener && context.checksum),
      sends_checksums_(context.checksum),
      ping_(std::make_shared<LatencyProbe>(
          *context.clock, context.transports == nullptr ? 0 : context.transports->size())) {}

PeerConnection::~PeerConnection() = default;

std::shared_ptr<ControlChannel> PeerConnection::Checksummed(bool is_checksummed) {
  SpinLockHolder lock(&mu_);
  return is_checksummed && channel_ != nullptr ? MakeChecksummedChannel(channel_) : channel_;
}

void PeerConnection::OnOpen(std::shared_ptr<ControlChannel> channel) {
  was_open_ = true;
  FERRY_LOG_DEBUG(kTransport, "peer connection open: peer={} connection={} opened by {}",
                  peer_.node_id, channel->Describe(), is_opener_ ? "this process" : "the peer");
  {
    SpinLockHolder lock(&mu_);
    channel_ = channel;
  }
  absl::Status status = observer_->OnConnectionOpen(shared_from_this());
  if (status.ok() && is_opener_) status = SendOwnHello();
  if (!status.ok()) channel->Close(status);
}

absl::Status PeerConnection::SendOwnHello() {
  const std::shared_ptr<ControlChannel> channel = Checksummed(sends_checksums_);
  const Endpoint& self = context_.self;
  HelloMessage hello = {self.boot_id, self.host_name,  self.channels.tcp,
                        self.gpus,    self.transports, {}};
  if (context_.eager != nullptr && context_.eager->OutboxOf(peer_) != nullptr) {
    hello.eager = context_.eager->limits();
  }
  return SendHello(*channel, hello);
}

absl::Status PeerConnection::OnFrame(uint16_t type, absl::string_view body,
                                     absl::Span<UniqueFd> descriptors) {
  if (expects_checksums_ || IsChecksummed(type)) FERRY_RETURN_IF_ERROR(VerifyChecksum(type, body));
  switch (static_cast<PeerMessageType>(type)) {
    case PeerMessageType::kReadyToSend:
    case PeerMessageType::kError:
    case PeerMessageType::kSenderControl:
    case PeerMessageType::kEager:
    case PeerMessageType::kEagerPull:
    case PeerMessageType::kAckNow:
      if (requester_ == nullptr) break;
      return requester_->OnFrame(type, body, descriptors, [this](const EagerRange& range) {
        return responder_->OnEagerAcknowledged(range);
      });
    case PeerMessageType::kRequest:
    case PeerMessageType::kAck:
    case PeerMessageType::kCancel:
    case PeerMessageType::kReceiverControl:
    case PeerMessageType::kRetry:
    case PeerMessageType::kRejected:
    case PeerMessageType::kEagerPush:
    case PeerMessageType::kEagerAck:
    case PeerMessageType::kStepRefused:
    case PeerMessageType::kNamedRequest:
    case PeerMessageType::kWatch:
      if (responder_ != nullptr) return responder_->OnFrame(type, body, descriptors);
      break;
    case PeerMessageType::kPing:
    case PeerMessageType::kPong:
      if (responder_ != nullptr) return OnPing(static_cast<PeerMessageType>(type), body);
      break;
    case PeerMessageType::kHello:
      return OnHello(body);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected message: ", PeerMessageName(type)));
  }
  if (is_opener_ && type == static_cast<uint16_t>(PeerMessageType::kError)) {
    return OnEarlyError(body);
  }
  return absl::InvalidArgumentError(absl::StrCat("a ", PeerMessageName(type), " before HELLO"));
}

absl::Status PeerConnection::OnFrames(absl::Span<const ControlFrame> frames) {
  const auto is_eager = [](const ControlFrame& frame) {
    return static_cast<PeerMessageType>(frame.type) == PeerMessageType::kEager;
  };
  while (!frames.empty()) {
    size_t count = 0;
    // EAGER frames in a row are passed on together. With checksums, and before HELLO, OnFrame
    // checks each, or refuses it; one that has a checksum is of another type.
    if (requester_ != nullptr && !expects_checksums_) {
      while (count < frames.size() && is_eager(frames[count])) ++count;
    }
    if (count > 1) {
      FERRY_RETURN_IF_ERROR(requester_->OnEager(
          frames.subspan(0, count),
          [this](const EagerRange& range) { return responder_->OnEagerAcknowledged(range); }));
    } else {
      count = 1;
      FERRY_RETURN_IF_ERROR(OnFrame(frames[0].type, frames[0].body, {}));
    }
    frames.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status PeerConnection::OnPing(PeerMessageType type, absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const uint64_t id, DecodeId(body));
  const std::shared_ptr<ControlChannel> channel = Checksummed(sends_checksums_);
  if (channel == nullptr) return absl::OkStatus();
  if (type == PeerMessageType::kPong) {
    return id >= LatencyProbe::kForeignIds ? responder_->OnFlushed(id)
                                           : ping_->OnPong(*channel, id);
  }
  // If the queue is full, the PONG is skipped and nothing is measured.
  SendId(*channel, PeerMessageType::kPong, id).IgnoreError();
  return absl::OkStatus();
}

absl::Status PeerConnection::OnEarlyError(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const ErrorMessage refusal, DecodeError(body));
  was_refused_ = absl::IsAlreadyExists(refusal.status);
  return absl::Status(
      refusal.status.code(),
      absl::StrCat(Describe(peer_), " closes the connection: ", refusal.status.message()));
}

absl::Status PeerConnection::VerifyChecksum(uint16_t& type, absl::string_view& body) {
  absl::Status status = RemoveChecksum(peer_, type, body);
  // Checksums can only begin with the first frame.
  if (status.ok() && !expects_checksums_ && has_received_hello_) {
    status = absl::InvalidArgumentError("a message with a checksum on a connection without them");
  }
  if (status.ok()) {
    expects_checksums_ = true;
    return status;
  }
  // Tell the peer why the control channel closes, and which side's data was corrupted.
  SendError(*Checksummed(true), {0, status}).IgnoreError();
  return status;
}

absl::Status PeerConnection::OnHello(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(HelloMessage hello, DecodeHello(body));
  if (has_received_hello_) return absl::InvalidArgumentError("a second HELLO");
  has_received_hello_ = true;
  // Our own HELLO may still have to be sent.
  sends_checksums_ = sends_checksums_ || expects_checksums_;
  expects_checksums_ = sends_checksums_;
  // Values with checksums are requested.
  const bool is_eager = context_.eager != nullptr && hello.eager.has_value() && !sends_checksums_ &&
                        context_.eager->OutboxOf(peer_) != nullptr;
  Endpoint endpoint;
  endpoint.peer = peer_;
  endpoint.boot_id = std::move(hello.boot_id);
  endpoint.host_name = std::move(hello.host_name);
  endpoint.channels.tcp = std::move(hello.tcp);
  endpoint.gpus = std::move(hello.gpus);
  endpoint.transports = std::move(hello.transports);
  absl::StatusOr<std::shared_ptr<TensorRequester>> requester =
      observer_->OnPeerHello(shared_from_this(), endpoint);
  if (!requester.ok()) {
    if (absl::IsAlreadyExists(requester.status())) {
      SendError(*Checksummed(sends_checksums_), {0, requester.status()}).IgnoreError();
    }
    return requester.status();
  }
  if (!is_opener_) FERRY_RETURN_IF_ERROR(SendOwnHello());
  const std::shared_ptr<ControlChannel> channel = Checksummed(sends_checksums_);
  if (!is_opener_) {
    (*requester)
        ->set_descriptors_unavailable_reason(
            channel->passes_descriptors() ? "" : absl::StrCat(Describe(peer_), " came over TCP"));
  }
  responder_ =
      std::make_shared<TensorResponder>(context_, std::move(endpoint), sends_checksums_,
                                        (*requester)->descriptors_unavailable_reason(), ping_);
  requester_ = *std::move(requester);
  ping_->set_incoming(requester_->costs());
  // Other threads may query its paths from then on.
  responder_->OnOpen(channel, is_eager ? hello.eager : std::nullopt);
  FERRY_LOG_INFO(kTransport, "peer connected: peer={} host={} connection={}{}", peer_.node_id,
                 Quoted(responder_->consumer().host_name), channel->Describe(),
                 sends_checksums_ ? ", with checksums" : "");
  observer_->OnResponderReady(*this, responder_);
  requester_->OnOpen(channel, responder_->consumer().transports, is_eager);
  // After the queued requests were sent.
  ping_->Refresh(*channel, context_.clock->Now());
  return absl::OkStatus();
}

void PeerConnection::Close(const absl::Status& why) {
  std::shared_ptr<ControlChannel> channel;
  {
    SpinLockHolder lock(&mu_);
    channel = channel_;
  }
  if (channel != nullptr) channel->Close(why);
}

void PeerConnection::Probe() {
  // Before HELLO it is unknown whether the frame would have to be checksummed.
  if (!has_received_hello_) return;
  if (const std::shared_ptr<ControlChannel> channel = Checksummed(sends_checksums_);
      channel != nullptr) {
    SendId(*channel, PeerMessageType::kCancel, 0).IgnoreError();
  }
}

void PeerConnection::OnClosed(const absl::Status& why) {
  {
    SpinLockHolder lock(&mu_);
    channel_ = nullptr;
  }
  if (responder_ != nullptr) {
    FERRY_LOG_INFO(kTransport, "peer connection closed: peer={}: {}", peer_.node_id, why);
  } else {
    FERRY_LOG_DEBUG(kTransport, "peer connection closed before its handshake was over: peer={}: {}",
                    peer_.node_id, why);
  }
  if (responder_ != nullptr) responder_->OnClosed(why);
  observer_->OnConnectionClosed(*this, why);
  is_over_.store(true, std::memory_order_release);
}

}  // namespace ferry
