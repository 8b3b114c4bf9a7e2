// SPDX-License-Identifier: Apache-2.0
// Who is there, whether frames are sealed, and to whom each goes.
#include "rendezvous/peer/lane_link.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/peer/lane_seal.h"

namespace ferry {

LaneLink::LaneLink(const LaneExchange& exchange, std::shared_ptr<LaneChooser> chooser,
                   const LanePeer& peer, bool is_opener)
    : exchange_(exchange),
      chooser_(std::move(chooser)),
      peer_(peer),
      is_opener_(is_opener),
      // Who opens it knows that the answer to a sealed HELLO is sealed.
      hears_seals_(is_opener && exchange.checksum),
      sends_seals_(exchange.checksum),
      ping_(std::make_shared<LanePing>(
          *exchange.clock, exchange.transports == nullptr ? 0 : exchange.transports->size())) {}

LaneLink::~LaneLink() = default;

std::shared_ptr<Lane> LaneLink::Sealed(bool is_sealed) {
  SpinLockHolder lock(&mu_);
  return is_sealed && lane_ != nullptr ? MakeSealingLane(lane_) : lane_;
}

void LaneLink::OnOpen(std::shared_ptr<Lane> lane) {
  was_open_ = true;
  FERRY_LOG_DEBUG(kTransport, "peer connection open: peer={} connection={} opened by {}",
                  peer_.node_id, lane->Describe(), is_opener_ ? "this process" : "the peer");
  {
    SpinLockHolder lock(&mu_);
    lane_ = lane;
  }
  absl::Status status = chooser_->OnLinkOpen(shared_from_this());
  if (status.ok() && is_opener_) status = SayHello();
  if (!status.ok()) lane->Close(status);
}

absl::Status LaneLink::SayHello() {
  const std::shared_ptr<Lane> lane = Sealed(sends_seals_);
  const Endpoint& self = exchange_.self;
  return SendHello(*lane,
                   {self.boot_id, self.host_name, self.lanes.tcp, self.gpus, self.nccl_version});
}

absl::Status LaneLink::OnFrame(uint16_t type, absl::string_view body,
                               absl::Span<UniqueFd> descriptors) {
  if (hears_seals_ || IsSealed(type)) FERRY_RETURN_IF_ERROR(CheckSeal(type, body));
  switch (static_cast<LaneMessage>(type)) {
    case LaneMessage::kTicket:
    case LaneMessage::kRefusal:
    case LaneMessage::kAnnouncement:
      if (client_ != nullptr) return client_->OnFrame(type, body, descriptors);
      break;
    case LaneMessage::kRequest:
    case LaneMessage::kDone:
    case LaneMessage::kCancel:
    case LaneMessage::kReply:
    case LaneMessage::kAgain:
    case LaneMessage::kDeclined:
      if (server_ != nullptr) return server_->OnFrame(type, body, descriptors);
      break;
    case LaneMessage::kPing:
    case LaneMessage::kPong:
      if (server_ != nullptr) return OnPing(static_cast<LaneMessage>(type), body);
      break;
    case LaneMessage::kHello:
      return OnHello(body);
    default:
      return absl::InvalidArgumentError(absl::StrCat("nobody sends a ", LaneMessageName(type)));
  }
  if (is_opener_ && type == static_cast<uint16_t>(LaneMessage::kRefusal)) {
    return OnEarlyRefusal(body);
  }
  return absl::InvalidArgumentError(absl::StrCat("a ", LaneMessageName(type), " before HELLO"));
}

absl::Status LaneLink::OnPing(LaneMessage type, absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const uint64_t id, DecodeId(body));
  const std::shared_ptr<Lane> lane = Sealed(sends_seals_);
  if (lane == nullptr) return absl::OkStatus();
  if (type == LaneMessage::kPong) {
    return id >= LanePing::kForeignIds ? server_->OnFlushed(id) : ping_->OnPong(*lane, id);
  }
  // Whose queue is full is not measured.
  SendId(*lane, LaneMessage::kPong, id).IgnoreError();
  return absl::OkStatus();
}

absl::Status LaneLink::OnEarlyRefusal(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const RefusalMessage refusal, DecodeRefusal(body));
  was_refused_ = absl::IsAlreadyExists(refusal.status);
  return absl::Status(refusal.status.code(),
                      absl::StrCat(Describe(peer_), " ends its lane: ", refusal.status.message()));
}

absl::Status LaneLink::CheckSeal(uint16_t& type, absl::string_view& body) {
  absl::Status status = Unseal(peer_, type, body);
  // Only the first frame may be the first that is sealed.
  if (status.ok() && !hears_seals_ && has_heard_hello_) {
    status = absl::InvalidArgumentError("a sealed message on a lane that has none");
  }
  if (status.ok()) {
    hears_seals_ = true;
    return status;
  }
  // The peer is to know why its lane ends, and whose bits have changed.
  SendRefusal(*Sealed(true), {0, status}).IgnoreError();
  return status;
}

absl::Status LaneLink::OnHello(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(HelloMessage hello, DecodeHello(body));
  if (has_heard_hello_) return absl::InvalidArgumentError("a second HELLO");
  has_heard_hello_ = true;
  // Ours may still be to come.
  sends_seals_ = sends_seals_ || hears_seals_;
  hears_seals_ = sends_seals_;
  Endpoint endpoint;
  endpoint.peer = peer_;
  endpoint.boot_id = std::move(hello.boot_id);
  endpoint.host_name = std::move(hello.host_name);
  endpoint.lanes.tcp = std::move(hello.tcp);
  endpoint.gpus = std::move(hello.gpus);
  endpoint.nccl_version = hello.nccl_version;
  absl::StatusOr<std::shared_ptr<LaneClient>> client =
      chooser_->OnLinkHello(shared_from_this(), endpoint);
  if (!client.ok()) {
    if (absl::IsAlreadyExists(client.status())) {
      SendRefusal(*Sealed(sends_seals_), {0, client.status()}).IgnoreError();
    }
    return client.status();
  }
  if (!is_opener_) FERRY_RETURN_IF_ERROR(SayHello());
  const std::shared_ptr<Lane> lane = Sealed(sends_seals_);
  if (!is_opener_) {
    (*client)->set_why_no_descriptors(
        lane->passes_descriptors() ? "" : absl::StrCat(Describe(peer_), " came over TCP"));
  }
  server_ = std::make_shared<LaneServer>(exchange_, std::move(endpoint), sends_seals_,
                                         (*client)->why_no_descriptors(), ping_);
  client_ = *std::move(client);
  ping_->set_incoming(client_->costs());
  // Others may ask it for its paths from then on.
  server_->OnOpen(lane);
  FERRY_LOG_INFO(kTransport, "peer connected: peer={} host={} connection={}{}", peer_.node_id,
                 Quoted(server_->consumer().host_name), lane->Describe(),
                 sends_seals_ ? ", with checksums" : "");
  chooser_->OnLinkServes(*this, server_);
  client_->OnOpen(lane);
  // After what waits to be asked.
  ping_->Refresh(*lane, exchange_.clock->Now());
  return absl::OkStatus();
}

void LaneLink::Close(const absl::Status& why) {
  std::shared_ptr<Lane> lane;
  {
    SpinLockHolder lock(&mu_);
    lane = lane_;
  }
  if (lane != nullptr) lane->Close(why);
}

void LaneLink::Probe() {
  // Whether it would have to be sealed is not known before.
  if (!has_heard_hello_) return;
  if (const std::shared_ptr<Lane> lane = Sealed(sends_seals_); lane != nullptr) {
    SendId(*lane, LaneMessage::kCancel, 0).IgnoreError();
  }
}

void LaneLink::OnClosed(const absl::Status& why) {
  {
    SpinLockHolder lock(&mu_);
    lane_ = nullptr;
  }
  if (server_ != nullptr) {
    FERRY_LOG_INFO(kTransport, "peer connection closed: peer={}: {}", peer_.node_id, why);
  } else {
    FERRY_LOG_DEBUG(kTransport, "peer connection closed before its handshake was over: peer={}: {}",
                    peer_.node_id, why);
  }
  if (server_ != nullptr) server_->OnClosed(why);
  chooser_->OnLinkClosed(*this, why);
  is_over_.store(true, std::memory_order_release);
}

}  // namespace ferry
