// SPDX-License-Identifier: Apache-2.0
// The table of a producer's transfers, and the frames that change them.
#include "rendezvous/peer/tensor_requester.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/recycled.h"
#include "base/status_macros.h"
#include "rendezvous/peer/eager_peers.h"
#include "rendezvous/peer/rejection.h"
#include "transport/control/descriptors.h"
#include "transport/inline_threshold.h"

namespace ferry {
namespace {

// With the counts of its shared pointer it is one recycled block: small tensors allocate nothing.
static_assert(sizeof(IncomingTransfer) + 32 <= kMaxRecycledBytes);

absl::Status SecondAnswer(uint64_t id) {
  return absl::InvalidArgumentError(
      absl::StrCat("an answer to request ", id, ", which waits for none"));
}

absl::Status Unexpected(uint16_t type) {
  return absl::InvalidArgumentError(absl::StrCat("a producer sends no ", PeerMessageName(type)));
}

}  // namespace

TensorRequester::TensorRequester(const TransferContext& context, Endpoint producer)
    : context_(context),
      producer_(std::move(producer)),
      inbox_(context.eager == nullptr ? nullptr : context.eager->InboxOf(producer_.peer)),
      costs_(std::make_shared<PathCostEstimator>(
          context.transports == nullptr ? 0 : context.transports->size())) {}

TensorRequester::~TensorRequester() = default;

std::shared_ptr<RemoteFetch> TensorRequester::Request(int64_t step_id, const RendezvousKey& key,
                                                      const RecvArgs& args, RecvCallback done) {
  const auto transfer = std::allocate_shared<IncomingTransfer>(
      RecyclingAllocator<IncomingTransfer>(), weak_from_this(), step_id, key, args, std::move(done),
      context_.checksum);
  absl::Status status;
  std::shared_ptr<ControlChannel> channel;
  uint64_t id = 0;
  {
    SpinLockHolder lock(&mu_);
    status = ended_;
    id = ++last_id_;
    transfer->set_id(id);
    channel = channel_;
    if (status.ok()) {
      if (context_.policy.forbids_tcp() && (channel == nullptr || !channel->passes_descriptors())) {
        transfer->AllowRejection(key);
      }
      if (channel == nullptr) {
        transfer->Queue(key);
      } else {
        transfer->Advance(IncomingState::kRequested);
      }
      transfers_.emplace(id, transfer);
    } else {
      transfer->Advance(IncomingState::kFinished);
    }
  }
  if (!status.ok()) {
    transfer->Complete(std::move(status), {});
    return nullptr;
  }
  if (channel != nullptr) {
    FERRY_LOG_DEBUG(kTransport, "request sent: peer={} step={} request={} key={}",
                    producer_.peer.node_id, step_id, id, transfer->logged_key());
    const uint32_t name = inbox_ == nullptr ? 0 : inbox_->NumberForRequest(*channel, key);
    status = name != 0 ? SendNamedRequest(*channel, {id, step_id, transfer->may_reject(), name})
                       : SendRequest(*channel, {id, step_id, transfer->may_reject(), key.text()});
    if (!status.ok()) End(id, Named(status));
  }
  return transfer;
}

void TensorRequester::OnOpen(std::shared_ptr<ControlChannel> channel,
                             std::vector<TransportDescription> transports, bool is_eager) {
  numbers_ = TransportNumbers(*context_.transports, transports);
  Endpoint producer = producer_;
  producer.transports = std::move(transports);
  for (size_t i = 0; i < context_.transports->size(); ++i) {
    if (!numbers_.common().Has(i)) {
      receivers_.push_back(nullptr);
      continue;
    }
    receivers_.push_back(
        (*context_.transports)[i]->CreateReceiver(producer, [weak = weak_from_this()](uint64_t id) {
          if (const auto requester = weak.lock()) requester->Acknowledge(id);
        }));
    const uint8_t number = NumberOfTransport(i);
    receivers_.back()->SetControlChannel(
        [weak = std::weak_ptr<ControlChannel>(channel), number](absl::string_view body,
                                                                absl::Span<const int> descriptors) {
          const auto open = weak.lock();
          if (open == nullptr || !descriptors.empty()) {
            return absl::UnavailableError("the control channel has closed");
          }
          absl::Status status = SendReceiverControl(*open, {number, body});
          // The peer would wait forever for a lost message.
          if (absl::IsResourceExhausted(status)) open->Close(status);
          return status;
        });
  }
  absl::Status status;
  // In the order of the calls; more requests may be added while these are being sent.
  uint64_t last_sent = 0;
  std::vector<uint64_t> cancelled;
  while (status.ok()) {
    std::vector<RequestMessage> requests;
    std::vector<std::string> keys;
    {
      SpinLockHolder lock(&mu_);
      for (const auto& [id, transfer] : transfers_) {
        if (id <= last_sent || transfer->state() != IncomingState::kQueued) continue;
        requests.push_back({id, transfer->step_id(), transfer->may_reject(), {}});
      }
      if (requests.empty()) {
        channel_ = channel;
        // Cancelled while their requests were being sent.
        for (const auto& [id, transfer] : transfers_) {
          if (transfer->state() == IncomingState::kCancelled) cancelled.push_back(id);
        }
        break;
      }
      std::sort(requests.begin(), requests.end(),
                [](const auto& a, const auto& b) { return a.id < b.id; });
      for (const RequestMessage& request : requests) {
        IncomingTransfer& transfer = *transfers_.find(request.id)->second;
        keys.push_back(transfer.TakeQueuedKey());
        transfer.Advance(IncomingState::kRequested);
      }
    }
    for (size_t i = 0; i < requests.size() && status.ok(); ++i) {
      last_sent = requests[i].id;
      requests[i].key = keys[i];
      FERRY_LOG_DEBUG(kTransport, "request sent: peer={} step={} request={} key={}",
                      producer_.peer.node_id, requests[i].step_id, last_sent,
                      absl::CEscape(keys[i]));
      if (absl::Status sent = SendRequest(*channel, requests[i]); absl::IsInvalidArgument(sent)) {
        End(last_sent, std::move(sent));
      } else {
        status = std::move(sent);
      }
    }
  }
  if (!status.ok()) return channel->Close(status);
  for (const uint64_t id : cancelled) SendCancelOrAck(*channel, PeerMessageType::kCancel, id);
  // After every request that was made before.
  if (is_eager && inbox_ != nullptr) {
    eager_channel_ = channel;
    inbox_->OnOpen(std::move(channel));
  }
}

absl::Status TensorRequester::OnFrame(
    uint16_t type, absl::string_view body, absl::Span<UniqueFd> descriptors,
    absl::FunctionRef<absl::Status(const EagerRange&)> acknowledge) {
  switch (static_cast<PeerMessageType>(type)) {
    case PeerMessageType::kReadyToSend:
      return OnReadyToSend(body, descriptors);
    case PeerMessageType::kError:
      return OnError(body);
    case PeerMessageType::kSenderControl: {
      FERRY_ASSIGN_OR_RETURN(const TransportControlMessage announcement,
                             DecodeTransportControl(body));
      FERRY_ASSIGN_OR_RETURN(const size_t index, numbers_.IndexOf(announcement.transport));
      if (!(*context_.transports)[index]->capabilities().fd_optional) {
        FERRY_RETURN_IF_ERROR(CheckDescriptors(descriptors));
      }
      return receivers_[index]->OnControlMessage(announcement.body, descriptors);
    }
    default:
      break;
  }
  if (static_cast<PeerMessageType>(type) == PeerMessageType::kEager) {
    const ControlFrame frame = {.type = type, .body = body};
    return OnEager(absl::MakeConstSpan(&frame, 1), acknowledge);
  }
  if (eager_channel_ != nullptr) {
    const ControlChannel& open = *eager_channel_;
    switch (static_cast<PeerMessageType>(type)) {
      case PeerMessageType::kEagerPull:
        return inbox_->OnPull(open, body);
      case PeerMessageType::kAckNow:
        return inbox_->OnAckNow(open, body);
      default:
        break;
    }
  }
  return Unexpected(type);
}

absl::Status TensorRequester::OnEager(
    absl::Span<const ControlFrame> frames,
    absl::FunctionRef<absl::Status(const EagerRange&)> acknowledge) {
  if (eager_channel_ == nullptr) return Unexpected(frames[0].type);
  return inbox_->OnEager(*eager_channel_, frames, acknowledge);
}

absl::Status TensorRequester::OnReadyToSend(absl::string_view body,
                                            absl::Span<UniqueFd> descriptors) {
  FERRY_RETURN_IF_ERROR(CheckDescriptors(descriptors));
  FERRY_ASSIGN_OR_RETURN(ReadyToSendMessage rts, DecodeReadyToSend(body));
  if (rts.transport == 0) return OnInlineReadyToSend(rts);
  // From here on it is this process's number.
  FERRY_ASSIGN_OR_RETURN(const size_t index, numbers_.IndexOf(rts.transport));
  rts.transport = NumberOfTransport(index);
  const uint64_t id = rts.id;
  IncomingTransferPtr transfer;
  bool is_wanted = false;
  bool is_again = false;
  Tensor destination;
  {
    SpinLockHolder lock(&mu_);
    const auto found = transfers_.find(id);
    if (found == transfers_.end() || !found->second->awaits_answer()) return SecondAnswer(id);
    transfer = found->second;
    is_wanted = transfer->state() != IncomingState::kCancelled;
    is_again = transfer->state() == IncomingState::kRetrying;
    if (is_wanted) {
      transfer->Advance(IncomingState::kFetching);
      transfer->set_transport(rts.transport);
      if (!rts.is_serialized) destination = transfer->destination().tensor();
    } else {
      transfer->Advance(IncomingState::kFinished);
      transfers_.erase(found);
    }
  }
  const absl::string_view name = transport(rts.transport).name();
  FERRY_LOG_DEBUG(kTransport, "fetch started: peer={} step={} request={} path={} bytes={} key={}",
                  producer_.peer.node_id, transfer->step_id(), id, name, rts.header.bytes,
                  transfer->logged_key());
  if (is_again) CancelOtherAttempts(id, rts.transport);
  absl::Status why;
  // The producer selects by its own policy; ours may be stricter.
  if (const std::string& required = context_.policy.require;
      !required.empty() && name != required) {
    why = WrongTransport(name, required, producer_.peer, context_.self.peer);
  } else if (destination.is_valid() &&
             (destination.dtype() != rts.header.dtype || destination.bytes() != rts.header.bytes)) {
    why = BufferMismatch(rts.header, destination);
  }
  if (is_wanted && why.ok()) {
    transfer->Fetch(shared_from_this(), transfer, rts, descriptors, std::move(destination));
    return absl::OkStatus();
  }
  TensorHeader header = rts.header;
  if (is_wanted) header.location = transfer->location();
  receiver(rts.transport).Discard(id, header, rts.body, descriptors);
  // Before the caller is notified, and possibly exits.
  if (is_wanted) {
    Reject(id, nullptr, why);
    End(id, std::move(why));
  } else {
    Acknowledge(id);
  }
  return absl::OkStatus();
}

absl::Status TensorRequester::OnInlineReadyToSend(const ReadyToSendMessage& rts) {
  const TensorHeader& header = rts.header;
  // Over a control channel within a host no tensor of that size is inline.
  const bool is_allowed =
      !context_.policy.forbids_tcp() || rts.body.size() <= kInlineMaxTcpForbidden;
  IncomingTransferPtr transfer;
  Tensor destination;
  bool is_again = false;
  bool fits = true;
  {
    SpinLockHolder lock(&mu_);
    const auto found = transfers_.find(rts.id);
    if (found == transfers_.end() || !found->second->awaits_answer()) return SecondAnswer(rts.id);
    transfer = std::move(found->second);
    transfers_.erase(found);
    const IncomingState before = transfer->state();
    transfer->Advance(IncomingState::kFinished);
    if (before == IncomingState::kCancelled) return absl::OkStatus();
    is_again = before == IncomingState::kRetrying;
    const Destination& wanted = transfer->destination();
    if (wanted.is_valid() && !rts.is_serialized && !rts.is_dead) {
      destination = *wanted;
      fits = destination.dtype() == header.dtype && destination.bytes() == header.bytes;
      if (fits && !destination.is_on_host()) destination = Tensor();
      // Under the lock: a caller that cancels may reuse its buffer once it has had the lock.
      if (is_allowed && fits && destination.is_valid() && header.bytes > 0) {
        std::memcpy(destination.mutable_data(), rts.body.data(), header.bytes);
      }
    }
  }
  if (is_again) CancelOtherAttempts(rts.id, 0);
  absl::Status error;
  if (!is_allowed) {
    error = WrongTransport(InlineTransport(*context_.transports), context_.policy.require,
                           producer_.peer, context_.self.peer);
  } else if (!fits) {
    error = BufferMismatch(header, destination);
  }
  transfer->ReceiveInline(*this, rts, std::move(destination), error);
  return absl::OkStatus();
}

absl::Status TensorRequester::OnError(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(ErrorMessage error, DecodeError(body));
  if ((error.id & EagerInbox::kWatchBit) != 0 && eager_channel_ != nullptr) {
    return inbox_->OnWatchEnded(*eager_channel_, error.id, error.status);
  }
  // It closes the whole control channel.
  if (error.id == 0) {
    return absl::Status(
        error.status.code(),
        absl::StrCat(Describe(producer_.peer), " closes the connection: ", error.status.message()));
  }
  CancelOtherAttempts(error.id, 0);
  IncomingTransferPtr cancelled;
  {
    SpinLockHolder lock(&mu_);
    const auto found = transfers_.find(error.id);
    // A pending fetch writes to its destination, which does not belong to the caller again before
    // the transport was told to stop.
    if (found == transfers_.end() || !found->second->awaits_answer()) return SecondAnswer(error.id);
    if (found->second->state() == IncomingState::kCancelled) {
      cancelled = std::move(found->second);
      transfers_.erase(found);
      cancelled->Advance(IncomingState::kFinished);
    }
  }
  if (cancelled == nullptr) End(error.id, std::move(error.status));
  return absl::OkStatus();
}

void TensorRequester::CancelOtherAttempts(uint64_t id, size_t except) {
  for (size_t i = 0; i < receivers_.size(); ++i) {
    const bool is_retryable = (*context_.transports)[i]->capabilities().retryable;
    if (i + 1 != except && is_retryable && receivers_[i] != nullptr) receivers_[i]->Cancel(id);
  }
}

bool TensorRequester::Finish(IncomingTransfer& transfer) {
  SpinLockHolder lock(&mu_);
  const auto found = transfers_.find(transfer.id());
  if (found == transfers_.end() || found->second->state() == IncomingState::kCancelled) {
    return false;
  }
  // The caller has another reference.
  transfers_.erase(found);
  return transfer.Advance(IncomingState::kFinished);
}

void TensorRequester::End(uint64_t id, absl::Status status) {
  IncomingTransferPtr transfer;
  {
    SpinLockHolder lock(&mu_);
    const auto found = transfers_.find(id);
    if (found == transfers_.end() || found->second->state() == IncomingState::kCancelled) return;
    transfer = std::move(found->second);
    transfers_.erase(found);
    transfer->Advance(IncomingState::kFinished);
  }
  transfer->LogEnd(*this, "", status);
  transfer->Complete(std::move(status), {});
}

void TensorRequester::Cancel(IncomingTransfer& transfer) {
  const uint64_t id = transfer.id();
  IncomingTransferPtr cancelled;
  std::shared_ptr<ControlChannel> channel;
  IncomingState before = IncomingState::kFinished;
  {
    SpinLockHolder lock(&mu_);
    const auto found = transfers_.find(id);
    if (found == transfers_.end()) return;
    before = transfer.state();
    if (before == IncomingState::kCancelled) return;
    cancelled = found->second;
    channel = channel_;
    if (transfer.awaits_answer()) {
      transfer.Advance(IncomingState::kCancelled);
    } else {
      transfers_.erase(found);
      transfer.Advance(IncomingState::kFinished);
    }
  }
  if (before == IncomingState::kFetching) {
    receiver(transfer.transport()).Cancel(id);
  } else if (before != IncomingState::kQueued && channel != nullptr) {
    SendCancelOrAck(*channel, PeerMessageType::kCancel, id);
  }
  FERRY_LOG_DEBUG(kTransport, "fetch cancelled: peer={} step={} request={} key={}",
                  producer_.peer.node_id, transfer.step_id(), id, transfer.logged_key());
  transfer.Complete(MakeDerived(absl::CancelledError("the fetch is cancelled")), {});
}

bool TensorRequester::Retry(IncomingTransfer& transfer, const absl::Status& why) {
  std::shared_ptr<ControlChannel> open;
  {
    SpinLockHolder lock(&mu_);
    if (!transfers_.contains(transfer.id()) || channel_ == nullptr) return false;
    if (!transfer.Advance(IncomingState::kRetrying)) return false;
    transfer.set_transport(0);
    open = channel_;
  }
  FERRY_LOG_DEBUG(kTransport, "another descriptor requested: peer={} request={} reason={}",
                  producer_.peer.node_id, transfer.id(), why);
  const absl::Status status = SendRetry(*open, {transfer.id(), why});
  if (!status.ok()) open->Close(status);
  return true;
}

void TensorRequester::ExpectAcknowledgement(const IncomingTransfer& transfer) {
  if (!IsLogged(LogComponent::kTransport, LogLevel::kDebug)) return;
  SpinLockHolder lock(&mu_);
  if (ended_.ok()) {
    unacknowledged_[transfer.id()] = {transfer.step_id(), transfer.logged_key()};
  }
}

void TensorRequester::LogAcknowledgement(uint64_t id, const absl::Status& status) {
  std::pair<int64_t, std::string> request;
  {
    SpinLockHolder lock(&mu_);
    const auto found = unacknowledged_.find(id);
    if (found != unacknowledged_.end()) {
      request = std::move(found->second);
      unacknowledged_.erase(found);
    }
  }
  if (status.ok()) {
    FERRY_LOG_DEBUG(kTransport, "acknowledgement sent: peer={} step={} request={} key={}",
                    producer_.peer.node_id, request.first, id, request.second);
  } else {
    FERRY_LOG_DEBUG(kTransport, "tensor rejected: peer={} step={} request={} reason={} key={}",
                    producer_.peer.node_id, request.first, id, status, request.second);
  }
}

void TensorRequester::Acknowledge(uint64_t id) {
  const std::shared_ptr<ControlChannel> open = channel();
  if (open == nullptr) return;
  if (IsLogged(LogComponent::kTransport, LogLevel::kDebug)) {
    LogAcknowledgement(id, absl::OkStatus());
  }
  SendCancelOrAck(*open, PeerMessageType::kAck, id);
}

void TensorRequester::Reject(uint64_t id, const IncomingTransfer* transfer,
                             const absl::Status& why) {
  const std::shared_ptr<ControlChannel> open = channel();
  if (open == nullptr) return;
  RejectedMessage rejected = {.id = id, .status = why};
  if (transfer != nullptr) {
    rejected.step_id = transfer->step_id();
    rejected.key = transfer->rejected_key();
  }
  if (IsLogged(LogComponent::kTransport, LogLevel::kDebug)) LogAcknowledgement(id, why);
  const absl::Status status = SendRejected(*open, rejected);
  if (!status.ok()) open->Close(status);
}

void TensorRequester::SendCancelOrAck(ControlChannel& channel, PeerMessageType type, uint64_t id) {
  const absl::Status status = SendId(channel, type, id);
  if (!status.ok()) channel.Close(status);
}

absl::Status TensorRequester::Named(const absl::Status& why) const {
  const std::string name = Describe(producer_.peer);
  if (absl::StrContains(why.message(), name)) return why;
  return absl::Status(why.code(), absl::StrCat("connection to ", name, ": ", why.message()));
}

std::string TensorRequester::PhaseOf(const IncomingTransfer& transfer) const {
  SpinLockHolder lock(&mu_);
  const std::string peer = Describe(producer_.peer);
  switch (transfer.state()) {
    case IncomingState::kQueued:
      return absl::StrCat("connecting to ", peer);
    case IncomingState::kRequested:
    case IncomingState::kRetrying:
      if (channel_ == nullptr) return absl::StrCat("connecting to ", peer);
      return absl::StrCat("asked ", peer, ", which has not sent it");
    case IncomingState::kFetching:
      return absl::StrCat("receiving from ", peer, " by ", transport(transfer.transport()).name());
    case IncomingState::kCancelled:
    case IncomingState::kFinished:
      break;
  }
  return "ending";
}

std::shared_ptr<ControlChannel> TensorRequester::channel() const {
  SpinLockHolder lock(&mu_);
  return channel_;
}

bool TensorRequester::has_ended() const {
  SpinLockHolder lock(&mu_);
  return !ended_.ok();
}

void TensorRequester::set_descriptors_unavailable_reason(std::string why) {
  SpinLockHolder lock(&mu_);
  descriptors_unavailable_reason_ = std::move(why);
}

std::string TensorRequester::descriptors_unavailable_reason() const {
  SpinLockHolder lock(&mu_);
  return descriptors_unavailable_reason_;
}

std::string TensorRequester::DescribeChannel() const {
  const std::shared_ptr<ControlChannel> open = channel();
  return open == nullptr ? "not connected yet" : open->Describe();
}

void TensorRequester::OnClosed(const absl::Status& why) {
  std::vector<std::pair<IncomingTransferPtr, IncomingState>> transfers;
  absl::Status status = Named(why);
  {
    SpinLockHolder lock(&mu_);
    if (!ended_.ok()) status = ended_;
    ended_ = status;
    channel_ = nullptr;
    transfers.reserve(transfers_.size());
    for (const auto& [id, transfer] : transfers_) {
      transfers.emplace_back(transfer, transfer->state());
      transfer->Advance(IncomingState::kFinished);
    }
    transfers_.clear();
    unacknowledged_.clear();
  }
  if (eager_channel_ != nullptr) inbox_->OnClosed(*eager_channel_, status);
  eager_channel_ = nullptr;
  for (const auto& receiver : receivers_) {
    if (receiver != nullptr) receiver->Abort(status);
  }
  for (const auto& [transfer, state] : transfers) {
    // Its caller has been told.
    if (state == IncomingState::kCancelled) continue;
    const absl::string_view phase = state == IncomingState::kQueued ? "before it was asked"
                                    : state == IncomingState::kFetching
                                        ? "while the tensor was on its way"
                                        : "while it was asked for a value";
    transfer->LogEnd(*this, "", status);
    const std::string& name = transfer->name();
    transfer->Complete(
        absl::Status(status.code(), absl::StrCat(status.message(), " (", phase,
                                                 name.empty() ? "" : "; ", name, ")")),
        {});
  }
  is_over_.store(true, std::memory_order_release);
}

void TensorRequester::Close(const absl::Status& why) {
  std::shared_ptr<ControlChannel> open;
  {
    SpinLockHolder lock(&mu_);
    if (!ended_.ok()) return;
    open = channel_;
    // No more requests; pending ones end when the control channel closes.
    if (open != nullptr) ended_ = why;
  }
  if (open == nullptr) return;
  if (inbox_ != nullptr) inbox_->OnClosing(*open);
  open->Close(why);
}

TableSizes TensorRequester::InnerTableSizes() const {
  SpinLockHolder lock(&mu_);
  size_t cancelled = 0;
  for (const auto& [id, transfer] : transfers_) {
    cancelled += transfer->state() == IncomingState::kCancelled ? 1 : 0;
  }
  return {{"requester.waiting", transfers_.size() - cancelled}, {"requester.cancelled", cancelled}};
}

}  // namespace ferry
