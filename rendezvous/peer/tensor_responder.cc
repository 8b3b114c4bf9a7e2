// SPDX-License-Identifier: Apache-2.0
// The table of a consumer's transfers, and the frames that change them.
#include "rendezvous/peer/tensor_responder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/clock.h"
#include "base/logging.h"
#include "base/recycled.h"
#include "base/status_macros.h"
#include "rendezvous/peer/eager_peers.h"

namespace ferry {
namespace {

// With the counts of its shared pointer it is one recycled block: small tensors allocate nothing.
static_assert(sizeof(OutgoingTransfer) + 32 <= kMaxRecycledBytes);

absl::Status WrongIncarnation(const RendezvousKey& key, uint64_t own) {
  return absl::AbortedError(absl::StrFormat(
      "RecvTensor expects a different device incarnation: %u vs. %u. Your worker job "
      "(\"%s\") was probably restarted. Check your worker job for the reason why it was restarted.",
      key.src_incarnation(), own, ToString(key.src().task)));
}

// True if it can still be fetched, though this process exits.
bool Outlives(const OutgoingTransfer& transfer) { return transfer.state() == OutgoingState::kLent; }

// True while it is copied out of GPU memory, and until a path is selected for the copy.
bool IsStaging(const OutgoingTransfer& transfer) {
  const OutgoingState state = transfer.state();
  return state == OutgoingState::kStaging || state == OutgoingState::kMatched;
}

}  // namespace

TensorResponder::TensorResponder(const TransferContext& context, Endpoint consumer,
                                 bool sends_checksums, std::string descriptors_unavailable_reason,
                                 std::shared_ptr<LatencyProbe> ping)
    : context_(context),
      consumer_(std::move(consumer)),
      outbox_(context.eager == nullptr ? nullptr : context.eager->OutboxOf(consumer_.peer)),
      numbers_(*context.transports, consumer_.transports),
      sends_checksums_(sends_checksums),
      ping_(std::move(ping)),
      paths_(context_, consumer_, sends_checksums, std::move(descriptors_unavailable_reason),
             ping_) {}

TensorResponder::~TensorResponder() = default;

void TensorResponder::OnOpen(std::shared_ptr<ControlChannel> channel,
                             const std::optional<EagerLimits>& limits) {
  channel_ = std::move(channel);
  paths_.set_channel(channel_.get());
  const bool is_eager = outbox_ != nullptr && limits.has_value();
  if (is_eager) {
    outbox_->OnOpen(
        channel_, *limits,
        {.in_arena = std::min(paths_.inline_max(/*is_in_arena=*/true), kMaxEagerBytes),
         .elsewhere = std::min(paths_.inline_max(/*is_in_arena=*/false), kMaxEagerBytes)});
  }
  if (context_.eager != nullptr) {
    context_.eager->SetConnected(consumer_.peer, *channel_, is_eager ? outbox_ : nullptr);
  }
  for (size_t i = 0; i < context_.transports->size(); ++i) {
    const auto& transport = (*context_.transports)[i];
    senders_.push_back(numbers_.common().Has(i) ? transport->CreateSender(consumer_) : nullptr);
    if (senders_.back() == nullptr) continue;
    const uint8_t number = NumberOfTransport(i);
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
    if (!channel_->passes_descriptors() || !context_.policy.allows(*transport)) continue;
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
      OnAck(id);
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
      break;
  }
  if (outbox_ != nullptr) {
    switch (static_cast<PeerMessageType>(type)) {
      case PeerMessageType::kEagerPush:
        return outbox_->OnPush(*channel_, body);
      case PeerMessageType::kEagerAck:
        return outbox_->OnAck(*channel_, body);
      case PeerMessageType::kStepRefused:
        return outbox_->OnStepRefused(*channel_, body);
      case PeerMessageType::kNamedRequest:
        return OnNamedRequest(body);
      case PeerMessageType::kWatch:
        return OnWatch(body);
      default:
        break;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("a consumer sends no ", PeerMessageName(type)));
}

absl::Status TensorResponder::OnEagerAcknowledged(const EagerRange& range) {
  return outbox_ == nullptr ? absl::OkStatus() : outbox_->OnAcknowledged(*channel_, range);
}

absl::Status TensorResponder::OnControlMessage(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const TransportControlMessage reply, DecodeTransportControl(body));
  FERRY_ASSIGN_OR_RETURN(const size_t index, numbers_.IndexOf(reply.transport));
  return senders_[index]->OnControlMessage(reply.body);
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
  if (key.src_incarnation() != context_.self.peer.incarnation) {
    Refuse(message.id, WrongIncarnation(key, context_.self.peer.incarnation));
    return absl::OkStatus();
  }
  return StartTransfer(message, key);
}

absl::Status TensorResponder::OnNamedRequest(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const NamedRequestMessage message, DecodeNamedRequest(body));
  const std::optional<RendezvousKey> key = outbox_->FindName(*channel_, message.name);
  if (!key.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a NAMED_REQUEST with undefined name ", message.name));
  }
  FERRY_LOG_DEBUG(kTransport, "request received: peer={} step={} request={} key={}",
                  consumer_.peer.node_id, message.step_id, message.id, absl::CEscape(key->text()));
  return StartTransfer({message.id, message.step_id, message.may_reject, {}}, *key);
}

absl::Status TensorResponder::OnWatch(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const WatchMessage watch, DecodeWatch(body));
  // A receive for which no value can be sent; what ends it ends the watch.
  const auto worker = [](const PeerId& peer) {
    return TaskName{.job = "worker", .replica = 0, .task = peer.node_id};
  };
  return StartTransfer(
      {watch.id, watch.step_id, /*may_reject=*/false, {}},
      RendezvousKey::StepEnd(worker(context_.self.peer), context_.self.peer.incarnation,
                             worker(consumer_.peer)));
}

absl::Status TensorResponder::StartTransfer(const RequestMessage& message,
                                            const RendezvousKey& key) {
  const OutgoingTransferPtr transfer = std::allocate_shared<OutgoingTransfer>(
      RecyclingAllocator<OutgoingTransfer>(), shared_from_this(), message, key);
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return absl::OkStatus();
    if (!transfers_.emplace(message.id, transfer).second) {
      return absl::InvalidArgumentError(absl::StrCat("request ", message.id, " for a second time"));
    }
  }
  transfer->Start(transfer);
  return absl::OkStatus();
}

bool TensorResponder::Match(OutgoingTransfer& transfer) {
  SpinLockHolder lock(&mu_);
  const auto found = transfers_.find(transfer.id());
  if (found == transfers_.end() || found->second.get() != &transfer) return false;
  // The caller has another reference.
  transfers_.erase(found);
  return transfer.Advance(OutgoingState::kMatched);
}

bool TensorResponder::MatchExposed(OutgoingTransfer& transfer, size_t transport, size_t bytes) {
  SpinLockHolder lock(&mu_);
  const auto found = transfers_.find(transfer.id());
  if (found == transfers_.end() || found->second.get() != &transfer) return false;
  transfer.listing() = {transport, bytes, SteadyClock().CoarseNow()};
  return transfer.Advance(OutgoingState::kExposed);
}

bool TensorResponder::Unexpose(OutgoingTransfer& transfer) {
  SpinLockHolder lock(&mu_);
  const auto found = transfers_.find(transfer.id());
  if (found == transfers_.end() || found->second.get() != &transfer) return false;
  // The caller has another reference.
  transfers_.erase(found);
  return transfer.Advance(OutgoingState::kMatched);
}

absl::Status TensorResponder::List(const OutgoingTransferPtr& transfer, OutgoingState state,
                                   size_t transport, size_t bytes) {
  SpinLockHolder lock(&mu_);
  if (!closed_.ok()) return closed_;
  transfer->Advance(state);
  transfer->listing() = {transport, bytes, SteadyClock().CoarseNow()};
  transfers_.insert_or_assign(transfer->id(), transfer);
  return absl::OkStatus();
}

void TensorResponder::Unlist(const OutgoingTransfer& transfer) {
  SpinLockHolder lock(&mu_);
  const auto found = transfers_.find(transfer.id());
  // The caller has another reference.
  if (found != transfers_.end() && found->second.get() == &transfer) transfers_.erase(found);
}

void TensorResponder::TrackSentRts(OutgoingTransfer& transfer, bool is_view) {
  {
    // After sending: an earlier PING sent by another thread does not cover this answer.
    SpinLockHolder lock(&mu_);
    answers_.Count(transfer.step_id());
    if (!is_view) return;
    // Unless the consumer has already given it back.
    if (transfer.state() == OutgoingState::kExposed) transfer.Advance(OutgoingState::kLent);
  }
  // A view is kept for as long as its receiver likes, so the step does not wait for it.
  transfer.EndOperation();
}

void TensorResponder::Refuse(uint64_t id, absl::Status status) {
  FERRY_LOG_DEBUG(kTransport, "request refused: peer={} request={} reason={}",
                  consumer_.peer.node_id, id, status);
  const absl::Status sent = SendError(*channel_, {id, std::move(status)});
  if (!sent.ok()) channel_->Close(sent);
}

absl::Status TensorResponder::Named(const absl::Status& why) const {
  return absl::Status(
      why.code(), absl::StrCat(Describe(context_.self.peer), " cannot send it: ", why.message()));
}

absl::Status TensorResponder::OnRetry(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const ErrorMessage again, DecodeError(body));
  OutgoingTransferPtr transfer;
  {
    SpinLockHolder lock(&mu_);
    const auto found = transfers_.find(again.id);
    if (found == transfers_.end() || found->second->state() != OutgoingState::kExposed ||
        !(*context_.transports)[found->second->listing().transport]->capabilities().retryable) {
      return absl::InvalidArgumentError(
          absl::StrCat("RETRY for transfer ", again.id,
                       ", which is not exposed, or by a transport that does not retry"));
    }
    transfer = std::move(found->second);
    transfers_.erase(found);
    transfer->Advance(OutgoingState::kMatched);
  }
  transfer->Retry(shared_from_this(), transfer, again.status);
  return absl::OkStatus();
}

OutgoingTransferPtr TensorResponder::TakeSent(uint64_t id) {
  SpinLockHolder lock(&mu_);
  const auto found = transfers_.find(id);
  if (found == transfers_.end()) return nullptr;
  const OutgoingState state = found->second->state();
  // No peer can have received anything else.
  if (state != OutgoingState::kExposed && state != OutgoingState::kLent) return nullptr;
  OutgoingTransferPtr transfer = std::move(found->second);
  transfers_.erase(found);
  transfer->Advance(OutgoingState::kFinished);
  return transfer;
}

void TensorResponder::OnAck(uint64_t id, bool was_received) {
  const OutgoingTransferPtr transfer = TakeSent(id);
  if (transfer == nullptr) return;
  transfer->Release(*this, was_received);
  // A pair that uses a transport needs the latency of its control channel.
  ping_->Refresh(*channel_, context_.clock->CoarseNow());
}

absl::Status TensorResponder::OnRejected(absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const RejectedMessage rejected, DecodeRejected(body));
  const absl::Status why(rejected.status.code(),
                         absl::StrCat(Describe(consumer_.peer), " did not take what it was sent: ",
                                      rejected.status.message()));
  if ((rejected.id & kEagerRejectedBit) != 0 && outbox_ != nullptr) {
    return outbox_->OnRejected(*channel_, rejected.id, why);
  }
  const OutgoingTransferPtr transfer = TakeSent(rejected.id);
  FERRY_LOG_DEBUG(kTransport, "tensor rejected: peer={} step={} request={} reason={} key={}",
                  consumer_.peer.node_id,
                  transfer != nullptr ? transfer->step_id() : rejected.step_id, rejected.id,
                  rejected.status,
                  absl::CEscape(transfer != nullptr ? transfer->key().text() : rejected.key));
  // Before its operation ends: the thread waiting for that then asks what was lost.
  if (transfer != nullptr) {
    transfer->RecordSendFailure(*this, why);
    transfer->Release(*this, /*was_received=*/false);
  } else if (!rejected.key.empty()) {
    FERRY_ASSIGN_OR_RETURN(const RendezvousKey key, RendezvousKey::Parse(rejected.key));
    if (key.dst().task.task != consumer_.peer.node_id) {
      return absl::InvalidArgumentError("REJECTED for the value of another consumer");
    }
    context_.manager->RecordSendFailure(rejected.step_id, key, why);
  }
  return absl::OkStatus();
}

void TensorResponder::OnCancel(uint64_t id) {
  OutgoingTransferPtr transfer;
  {
    SpinLockHolder lock(&mu_);
    const auto found = transfers_.find(id);
    if (found == transfers_.end()) return;
    // Its RTS has been sent, or will be, and the consumer handles it.
    if (found->second->state() != OutgoingState::kRequested) return;
    transfer = std::move(found->second);
    transfers_.erase(found);
    transfer->Advance(OutgoingState::kFinished);
  }
  FERRY_LOG_DEBUG(
      kTransport, "request cancelled by the receiver: peer={} step={} request={} key={}",
      consumer_.peer.node_id, transfer->step_id(), id, absl::CEscape(transfer->key().text()));
  transfer->Cancel();
  Refuse(id, absl::CancelledError("cancelled by the receiver"));
}

std::optional<uint64_t> TensorResponder::StartFlush(int64_t step_id, StepOperation operation) {
  AckTracker::Flush flush;
  {
    SpinLockHolder lock(&mu_);
    if (!closed_.ok()) return std::nullopt;
    flush = answers_.Start(step_id);
    // Its PONG may arrive before this returns.
    if (flush.is_awaited) flushes_.emplace_back(flush.number, std::move(operation));
  }
  if (flush.needs_ping &&
      !SendId(*channel_, PeerMessageType::kPing, LatencyProbe::kForeignIds + flush.number).ok()) {
    // The operations end after the lock is released.
    std::vector<StepOperation> ended;
    SpinLockHolder lock(&mu_);
    answers_.OnPingFailed(flush.number);
    ended = TakeFlushed();
    return std::nullopt;
  }
  return flush.is_awaited ? std::optional(flush.number) : std::nullopt;
}

bool TensorResponder::IsFlushed(uint64_t flush) const {
  SpinLockHolder lock(&mu_);
  return !closed_.ok() || answers_.IsOver(flush);
}

void TensorResponder::GiveUpFlush(uint64_t flush) {
  SpinLockHolder lock(&mu_);
  answers_.GiveUp(flush);
}

absl::Status TensorResponder::OnFlushed(uint64_t id) {
  // The operations end after the lock is released.
  std::vector<StepOperation> ended;
  SpinLockHolder lock(&mu_);
  FERRY_RETURN_IF_ERROR(answers_.OnPong(id - LatencyProbe::kForeignIds));
  ended = TakeFlushed();
  return absl::OkStatus();
}

std::vector<StepOperation> TensorResponder::TakeFlushed() {
  std::vector<StepOperation> ended;
  std::vector<std::pair<uint64_t, StepOperation>> left;
  for (auto& [number, operation] : flushes_) {
    if (answers_.IsOver(number)) {
      ended.push_back(std::move(operation));
    } else {
      left.emplace_back(number, std::move(operation));
    }
  }
  flushes_.swap(left);
  return ended;
}

absl::Status TensorResponder::closed() const {
  SpinLockHolder lock(&mu_);
  return closed_;
}

void TensorResponder::OnClosed(const absl::Status& why) {
  std::vector<OutgoingTransferPtr> waiting;
  std::vector<OutgoingTransferPtr> sent;
  std::vector<std::pair<uint64_t, StepOperation>> flushes;
  {
    SpinLockHolder lock(&mu_);
    closed_ = why;
    for (const auto& [id, transfer] : transfers_) {
      (transfer->state() == OutgoingState::kRequested ? waiting : sent).push_back(transfer);
    }
    for (const OutgoingTransferPtr& transfer : waiting) {
      transfers_.erase(transfer->id());
      transfer->Advance(OutgoingState::kFinished);
    }
    flushes.swap(flushes_);
  }
  if (outbox_ != nullptr) outbox_->OnClosed(*channel_, why);
  if (context_.eager != nullptr) {
    EagerOutbox* const other = context_.eager->OnDisconnected(consumer_.peer, *channel_);
    if (other != nullptr) other->OfferAll();
  }
  for (const OutgoingTransferPtr& transfer : waiting) transfer->Cancel();
  for (const OutgoingTransferPtr& transfer : sent) {
    // For views it is unknown whether they were received.
    if (!Outlives(*transfer)) transfer->RecordSendFailure(*this, why);
  }
  // Removed from the list once their outcome is recorded, and their operations end after that: the
  // thread closing the step waits for those, and then asks what was lost. Nothing is added any
  // more.
  {
    SpinLockHolder lock(&mu_);
    for (const auto& [id, transfer] : transfers_) {
      const OutgoingState state = transfer->state();
      // The callbacks of the others end them.
      if (state == OutgoingState::kExposed || state == OutgoingState::kLent) {
        transfer->Advance(OutgoingState::kFinished);
      }
    }
    transfers_.clear();
  }
  for (const auto& sender : senders_) {
    if (sender != nullptr) sender->Abort(why);
  }
}

size_t TensorResponder::unfinished() const {
  SpinLockHolder lock(&mu_);
  size_t count = 0;
  for (const auto& [id, transfer] : transfers_) {
    const OutgoingState state = transfer->state();
    count += state == OutgoingState::kRequested || state == OutgoingState::kLent ? 0 : 1;
  }
  return count;
}

void TensorResponder::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  std::vector<std::pair<OutgoingTransferPtr, OutgoingTransfer::Listing>> sent;
  {
    SpinLockHolder lock(&mu_);
    sent.reserve(transfers_.size());
    for (const auto& [id, transfer] : transfers_) {
      if (transfer->state() == OutgoingState::kRequested) continue;
      sent.emplace_back(transfer, transfer->listing());
    }
  }
  const absl::Time now = SteadyClock().CoarseNow();
  for (const auto& [transfer, listing] : sent) {
    const absl::Duration age = now - listing.since;
    if (age < min_age) continue;
    const std::string peer = Describe(consumer_.peer);
    const bool is_staging = IsStaging(*transfer);
    const bool outlives = Outlives(*transfer);
    const auto name = [&, number = listing.transport] {
      return (*context_.transports)[number]->name();
    };
    std::string phase =
        is_staging ? absl::StrCat("being copied out of a GPU's memory for ", peer)
        : outlives ? absl::StrCat("lent to ", peer, " by ", name(), "; not given back yet")
                   : absl::StrCat("being sent to ", peer, " by ", name(), "; not all there yet");
    if (!is_staging) {
      const std::string obstacle = senders_[listing.transport]->Obstacle();
      if (!obstacle.empty()) absl::StrAppend(&phase, ", since ", obstacle);
    }
    visit({.step_id = transfer->step_id(),
           .key = transfer->key(),
           .side = PendingStepOp::Side::kTransfer,
           .bytes = listing.bytes,
           .age = age,
           .phase = std::move(phase),
           .outlives_sender = outlives});
  }
}

TableSizes TensorResponder::InnerTableSizes() const {
  SpinLockHolder lock(&mu_);
  size_t waiting = 0;
  size_t staging = 0;
  size_t views = 0;
  for (const auto& [id, transfer] : transfers_) {
    waiting += transfer->state() == OutgoingState::kRequested ? 1 : 0;
    staging += IsStaging(*transfer) ? 1 : 0;
    views += Outlives(*transfer) ? 1 : 0;
  }
  return {{"responder.waiting", waiting},
          {"responder.exposed", transfers_.size() - waiting},
          {"responder.staging", staging},
          {"responder.views", views},
          {"responder.flushes", flushes_.size()}};
}

}  // namespace ferry
