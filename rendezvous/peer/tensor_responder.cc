// SPDX-License-Identifier: Apache-2.0
// Requests in, transfer descriptors out; pending transfers: tensor_responder_transfers.cc.
#include "rendezvous/peer/tensor_responder.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/recycled.h"
#include "base/status_macros.h"
#include "rendezvous/peer/frame_checksum.h"
#include "rendezvous/serialized_tensor.h"
#include "tensor/checksum.h"

namespace ferry {
namespace {

// Attempts for a tensor in GPU memory before it is staged through host memory, and before it fails.
constexpr int kMaxGpuTries = 4;
constexpr int kMaxTries = 8;

absl::Status WrongIncarnation(const RendezvousKey& key, uint64_t own) {
  return absl::AbortedError(absl::StrFormat(
      "RecvTensor expects a different device incarnation: %u vs. %u. Your worker job "
      "(\"%s\") was probably restarted. Check your worker job for the reason why it was restarted.",
      key.src_incarnation(), own, ToString(key.src().task)));
}

}  // namespace

TensorResponder::TensorResponder(const TransferContext& exchange, Endpoint consumer,
                                 bool sends_checksums, std::string descriptors_unavailable_reason,
                                 std::shared_ptr<LatencyProbe> ping)
    : exchange_(exchange),
      consumer_(std::move(consumer)),
      sends_checksums_(sends_checksums),
      descriptors_unavailable_reason_(std::move(descriptors_unavailable_reason)),
      ping_(std::move(ping)) {}

TensorResponder::~TensorResponder() = default;

void TensorResponder::OnOpen(std::shared_ptr<ControlChannel> channel) {
  channel_ = std::move(channel);
  for (const auto& transport : *exchange_.transports) {
    senders_.push_back(transport->CreateSender(consumer_));
    const auto number = static_cast<uint8_t>(senders_.size());
    senders_.back()->SetControlChannel(
        [weak = std::weak_ptr<ControlChannel>(channel_), number](
            absl::string_view body, absl::Span<const int> descriptors) {
          const auto open = weak.lock();
          if (open == nullptr) return absl::UnavailableError("the control channel has closed");
          absl::Status status = SendSenderControl(*open, {number, body}, descriptors);
          // The peer would wait forever for a lost message.
          if (absl::IsResourceExhausted(status)) open->Close(status);
          return status;
        });
    const bool is_allowed =
        exchange_.policy.require.empty() || exchange_.policy.require == transport->name();
    if (!channel_->passes_descriptors() || !is_allowed) continue;
    senders_.back()->SetHintChannel([weak = std::weak_ptr<ControlChannel>(channel_), number](
                                        absl::string_view body, absl::Span<const int> descriptors) {
      const auto open = weak.lock();
      if (open == nullptr) return absl::UnavailableError("the control channel has closed");
      // A descriptor in transit keeps freed memory allocated: do not send more to a peer that reads
      // nothing.
      if (!open->is_all_read()) return absl::UnavailableError("the peer has not read the last");
      return SendSenderControl(*open, {number, body}, descriptors);
    });
  }
}

absl::Status TensorResponder::OnFrame(uint16_t type, absl::string_view body,
                                      absl::Span<UniqueFd> descriptors) {
  switch (static_cast<PeerMessageType>(type)) {
    case PeerMessageType::kRequest:
      return OnRequest(body);
    case PeerMessageType::kAck: {
      FERRY_ASSIGN_OR_RETURN(const uint64_t id, DecodeId(body));
      OnDone(id);
      return absl::OkStatus();
    }
    case PeerMessageType::kCancel: {
      FERRY_ASSIGN_OR_RETURN(const uint64_t id, DecodeId(body));
      OnCancel(id);
      return absl::OkStatus();
    }
    case PeerMessageType::kReceiverControl:
      return OnControlMessage(body);
    case PeerMessageType::kRetry:
      return OnRetry(body);
    case PeerMessageType::kRejected:
      return OnRejected(body);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a consumer sends no ", PeerMessageName(type)));
  }
}

absl::Status TensorResponder::OnControlMessage(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const TransportControlMessage reply, DecodeTransportControl(body));
  if (reply.transport > senders_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a reply to transport ", reply.transport, ", which is not known here"));
  }
  return senders_[reply.transport - 1]->OnControlMessage(reply.body);
}

absl::Status TensorResponder::OnRetry(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const ErrorMessage again, DecodeError(body));
  Offered offered;
  {
    SpinLockHolder lock(&mu_);
    const auto found = offered_.find(again.id);
    if (found == offered_.end() || found->second.again == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("RETRY for ", again.id, ", which was not offered, or not for that"));
    }
    offered = std::move(found->second);
    offered_.erase(found);
  }
  senders_[offered.transport]->Release(again.id);
  Outgoing outgoing = std::move(*offered.again);
  ++outgoing.failed_tries;
  if (outgoing.failed_tries >= kMaxTries) {
    Lose(*outgoing.request, absl::AbortedError(absl::StrCat(
                                Describe(exchange_.self.peer), " has tried ", outgoing.failed_tries,
                                " times to send it; at last: ", again.status.message())));
    return absl::OkStatus();
  }
  const bool is_required =
      exchange_.policy.require == (*exchange_.transports)[offered.transport]->name();
  if (outgoing.failed_tries >= kMaxGpuTries && !is_required) {
    Stage(std::move(outgoing));
  } else {
    Expose(std::move(outgoing));
  }
  return absl::OkStatus();
}

absl::Status TensorResponder::OnRequest(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const RequestMessage message, DecodeRequest(body));
  const absl::StatusOr<const RendezvousKey*> parsed = keys_.Parse(message.key);
  if (!parsed.ok()) {
    Refuse(message.id, parsed.status());
    return absl::OkStatus();
  }
  const RendezvousKey& key = **parsed;
  FERRY_LOG_DEBUG(kTransport, "request received: peer={} step={} request={} key={}",
                  consumer_.peer.node_id, message.step_id, message.id, absl::CEscape(key.text()));
  if (key.src_incarnation() != exchange_.self.peer.incarnation) {
    Refuse(message.id, WrongIncarnation(key, exchange_.self.peer.incarnation));
    return absl::OkStatus();
  }
  RequestPtr request = std::allocate_shared<Request>(RecyclingAllocator<Request>(),
                                                     shared_from_this(), message, key);
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return absl::OkStatus();
    if (offered_.contains(message.id) || !waiting_.emplace(message.id, request).second) {
      return absl::InvalidArgumentError(absl::StrCat("request ", message.id, " for a second time"));
    }
  }
  RecvArgs args;
  args.cancellation = &request->cancellation;
  args.operation = &request->operation;
  exchange_.manager->RecvLocalAsync(message.step_id, request->key, std::move(args),
                                    [request](absl::Status status, Received received) {
                                      const std::shared_ptr<TensorResponder> server =
                                          std::move(request->server);
                                      server->OnValue(request, status, std::move(received));
                                    });
  return absl::OkStatus();
}

bool TensorResponder::Take(const Request& request) {
  SpinLockHolder lock(&mu_);
  return waiting_.erase(request.id) > 0;
}

void TensorResponder::OnValue(const RequestPtr& request, const absl::Status& status,
                              Received received) {
  if (!Take(*request)) {
    // Cancelled by the consumer, or by the closing of the control channel.
    if (status.ok()) RecordSendFailure(*request, closed());
    return;
  }
  if (!status.ok()) return Refuse(request->id, status);
  if (received.is_dead) {
    ReadyToSendMessage rts;
    rts.id = request->id;
    rts.is_dead = true;
    return Send(*request, std::move(rts), {});
  }
  Outgoing outgoing = {.request = request, .tensor = std::move(received.tensor)};
  if (!IsFixedSize(outgoing.tensor.dtype())) {
    absl::StatusOr<Tensor> serialized = SerializeTensor(outgoing.tensor);
    if (!serialized.ok()) return Lose(*request, serialized.status());
    outgoing.tensor = *std::move(serialized);
    outgoing.is_serialized = true;
  }
  Expose(std::move(outgoing));
}

void TensorResponder::Send(Request& request, ReadyToSendMessage rts,
                           absl::Span<const int> descriptors) {
  FERRY_LOG_DEBUG(kTransport, "descriptor sent: peer={} step={} request={} path={} bytes={} key={}",
                  consumer_.peer.node_id, request.step_id, request.id,
                  rts.transport == 0 ? absl::string_view("inline")
                                     : (*exchange_.transports)[rts.transport - 1u]->name(),
                  rts.header.bytes, absl::CEscape(request.key.text()));
  const absl::Status status = SendReadyToSend(*channel_, rts, descriptors);
  // Close the channel, or the consumer would wait for a message that never arrives.
  if (!status.ok()) return channel_->Close(status);
  // A view may be rejected after the step has stopped waiting for it.
  const bool is_view =
      rts.transport > 0 && (*exchange_.transports)[rts.transport - 1u]->outlives_producer();
  const bool has_all = rts.transport == 0 && !rts.is_dead;
  if (!is_view && !(has_all && (request.may_reject || rts.may_be_rejected()))) return;
  {
    // After sending: an earlier PING sent by another thread does not cover this answer.
    SpinLockHolder lock(&mu_);
    answers_.Count(request.step_id);
    if (!is_view) return;
    const auto found = offered_.find(rts.id);
    if (found != offered_.end()) found->second.is_told = true;
  }
  // A view is kept for as long as its receiver likes, so the step does not wait for it.
  request.operation.End();
}

void TensorResponder::Refuse(uint64_t id, absl::Status status) {
  FERRY_LOG_DEBUG(kTransport, "request refused: peer={} request={} reason={}",
                  consumer_.peer.node_id, id, status);
  const absl::Status sent = SendError(*channel_, {id, std::move(status)});
  if (!sent.ok()) channel_->Close(sent);
}

void TensorResponder::OnDone(uint64_t id, bool was_taken) {
  Offered offered;
  {
    SpinLockHolder lock(&mu_);
    const auto found = offered_.find(id);
    // A tensor being staged cannot be done yet.
    if (found == offered_.end() || found->second.transport == kStaging) return;
    offered = found->second;
    offered_.erase(found);
  }
  if (was_taken) {
    FERRY_LOG_DEBUG(kTransport, "acknowledgement received: peer={} step={} request={} key={}",
                    consumer_.peer.node_id, offered.request->step_id, id,
                    absl::CEscape(offered.request->key.text()));
  }
  senders_[offered.transport]->Release(id);
  if (was_taken && offered.start != absl::InfiniteFuture()) {
    const absl::Time now = exchange_.clock->Now();
    ping_->costs()->SawTransfer(offered.transport, offered.tensor_bytes, now - offered.start, now);
  }
}

void TensorResponder::OnCancel(uint64_t id) {
  RequestPtr request;
  {
    SpinLockHolder lock(&mu_);
    const auto found = waiting_.find(id);
    // Its transfer descriptor has been sent, and the consumer handles it.
    if (found == waiting_.end()) return;
    request = std::move(found->second);
    waiting_.erase(found);
  }
  FERRY_LOG_DEBUG(kTransport,
                  "request cancelled by the receiver: peer={} step={} request={} key={}",
                  consumer_.peer.node_id, request->step_id, id, absl::CEscape(request->key.text()));
  request->cancellation.Cancel();
  Refuse(id, absl::CancelledError("cancelled by the receiver"));
}

}  // namespace ferry
