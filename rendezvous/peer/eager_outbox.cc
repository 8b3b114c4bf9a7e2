// SPDX-License-Identifier: Apache-2.0
// Sending of values, and the frames that allow or acknowledge it.
#include "rendezvous/peer/eager_outbox.h"

#include <algorithm>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "rendezvous/peer/eager_peers.h"
#include "rendezvous/rendezvous_manager.h"
#include "tensor/check_values.h"
#include "transport/inline_threshold.h"

namespace ferry {

void EagerOutbox::OnOpen(std::shared_ptr<ControlChannel> channel, const EagerLimits& limits,
                         const SizeLimits& sizes) {
  Deferred deferred;
  {
    SpinLockHolder lock(&mu_);
    // The peer has opened another control channel, and this side has not noticed the end of the
    // last one yet.
    if (channel_ != nullptr) Reset(deferred);
    channel_ = std::move(channel);
    sizes_ = sizes;
    // The smaller of both sides' limits: a peer must not decide how much is kept here.
    const EagerLimits& own = context_.eager->limits();
    sender_.emplace(EagerLimits{.step_values = std::min(limits.step_values, own.step_values),
                                .step_bytes = std::min(limits.step_bytes, own.step_bytes),
                                .peer_values = std::min(limits.peer_values, own.peer_values),
                                .peer_bytes = std::min(limits.peer_bytes, own.peer_bytes),
                                .names = std::min(limits.names, own.names),
                                .name_bytes = std::min(limits.name_bytes, own.name_bytes)});
  }
  Run(std::move(deferred), absl::UnavailableError("the peer has opened another connection"));
}

void EagerOutbox::OnClosed(const ControlChannel& channel, const absl::Status& why) {
  Deferred deferred;
  {
    SpinLockHolder lock(&mu_);
    if (!IsCurrent(channel)) return;
    Reset(deferred);
  }
  Run(std::move(deferred), why);
}

void EagerOutbox::Reset(Deferred& deferred) {
  is_started_.store(false, std::memory_order_relaxed);
  sender_->OnChannelEnd([&](uint64_t, const EagerSender::Record& record) {
    deferred.losses.push_back({record.step_id, record.key});
  });
  for (auto& [step_id, operation] : operations_) deferred.ended.push_back(std::move(operation));
  operations_.clear();
  sender_.reset();
  channel_.reset();
  frame_.Start(0, 0);
  has_unsent_.store(false, std::memory_order_relaxed);
}

void EagerOutbox::Run(Deferred deferred, const absl::Status& why) {
  // Before the operations end: the thread that waits for those then asks what was lost.
  for (const Loss& loss : deferred.losses) {
    context_.manager->RecordSendFailure(loss.step_id, loss.key, why);
  }
}

bool EagerOutbox::IsEager(const Tensor& tensor) const {
  if (!tensor.is_on_host() || !IsFixedSize(tensor.dtype()) ||
      tensor.shape().rank() > kMaxEagerRank) {
    return false;
  }
  const bool is_in_arena = tensor.buffer() != nullptr && tensor.buffer()->arena() != nullptr;
  return tensor.bytes() <= (is_in_arena ? sizes_.in_arena : sizes_.elsewhere) &&
         CheckValues(tensor).ok();
}

size_t EagerOutbox::TrySendMany(RemoteRendezvous& step, absl::Span<SendItem* const> items,
                                uint64_t push_count, bool more_follow) {
  if (!is_started_.load(std::memory_order_acquire)) return 0;
  const int64_t step_id = step.step_id();
  SpinLockHolder lock(&mu_);
  if (push_count_.load(std::memory_order_relaxed) != push_count) return 0;
  if (!sender_.has_value() || !is_started_.load(std::memory_order_relaxed) ||
      channel_->queued_bytes() > context_.eager->max_backlog()) {
    return 0;
  }
  EagerSender::Decision decision;
  const bool is_started = sender_->StartBurst(step_id, decision);
  if (decision.is_new_step && !step.AddSendLink(*this)) {
    // Cannot happen, since the abort waits for the caller.
    FERRY_LOG_ERROR(kTransport, "value sent in a step that is over: step={}", step_id);
  }
  if (!is_started) return 0;
  const int64_t since = context_.clock->CoarseNanos();
  absl::Status status;
  size_t count = 0;
  for (const SendItem* const item : items) {
    const RendezvousKey& key = *item->key;
    // Nobody can receive a value of another incarnation of this process.
    if (!item->tensor.is_valid() || key.src_incarnation() != context_.self.peer.incarnation ||
        !IsEager(item->tensor) ||
        !sender_->SendInBurst(key, item->tensor.bytes(), since, decision)) {
      break;
    }
    FERRY_LOG_DEBUG(kTransport, "value sent before its request: peer={} step={} sequence={} key={}",
                    consumer_.node_id, step_id, decision.sequence, absl::CEscape(key.text()));
    status = SendNamed(step_id, decision, key, item->tensor, more_follow);
    if (!status.ok()) {
      // As in TrySend.
      sender_->OnRejected(kEagerRejectedBit | decision.sequence).IgnoreError();
      break;
    }
    ++count;
  }
  if (count > 0 && decision.is_first_unacknowledged) operations_[step_id].Begin(step.operations());
  // It may have begun to be flushed before it had state here.
  if (count > 0 && status.ok() && step.is_flushing() && sender_->StartFlush(step_id)) {
    status = SendFrame();
    if (status.ok()) status = SendAckNow(*channel_, step_id);
  }
  if (!status.ok()) channel_->Close(status);
  return count;
}

absl::Status EagerOutbox::SendNamed(int64_t step_id, const EagerSender::Decision& decision,
                                    const RendezvousKey& key, const Tensor& tensor,
                                    bool more_follow) {
  const auto sequence = static_cast<uint32_t>(decision.sequence);
  const bool has_text = decision.name == 0 || decision.defines_name;
  const bool is_plain = !has_text && tensor.shape().rank() <= 1;
  const bool is_alone = !more_follow && frame_.count() == 0;
  if (is_alone && is_plain) {
    return SendEagerVector(*channel_, step_id, sequence, decision.name, &tensor);
  }
  EagerRecord record;
  if (!is_plain) {
    record.name = decision.name;
    if (has_text) record.text = key.text();
    record.header = {tensor.dtype(), tensor.shape(), tensor.bytes()};
    record.payload = {static_cast<const char*>(tensor.data()), tensor.bytes()};
  }
  if (is_alone) {
    return SendEagerValue(*channel_, {.step_id = step_id, .sequence = sequence, .count = 1},
                          record);
  }
  const auto append = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_plain ? frame_.AppendVector(decision.name, tensor) : frame_.AppendInPlace(record);
  };
  if (frame_.count() == 0 || frame_.step_id() != step_id || !append()) {
    FERRY_RETURN_IF_ERROR(SendFrame());
    frame_.Start(step_id, sequence);
    append();
  }
  if (!more_follow) return SendFrame();
  has_unsent_.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

bool EagerOutbox::TrySend(const Offer& offer) {
  if (!is_started_.load(std::memory_order_acquire)) return false;
  // Nobody can receive it: the consumer's key names another incarnation of this process.
  if (offer.key.src_incarnation() != context_.self.peer.incarnation) return false;
  const int64_t step_id = offer.step.step_id();
  SpinLockHolder lock(&mu_);
  if (!sender_.has_value() || !is_started_.load(std::memory_order_relaxed)) return false;
  EagerSender::Value value;
  value.bytes = offer.is_dead ? 0 : offer.tensor.bytes();
  value.is_eager = offer.args.device_context == nullptr && (offer.is_dead || IsEager(offer.tensor));
  value.is_behind_another = offer.is_behind_another;
  value.is_drained = offer.is_drained;
  value.is_step_serving = offer.is_step_serving;
  value.is_channel_full = channel_->queued_bytes() > context_.eager->max_backlog();
  value.since = context_.clock->CoarseNanos();
  const EagerSender::Decision decision = sender_->Send(step_id, offer.key, value);
  if (decision.is_new_step && !offer.step.AddSendLink(*this)) {
    // Cannot happen with the shard's lock held, since the abort waits for it.
    FERRY_LOG_ERROR(kTransport, "value sent in a step that is over: step={}", step_id);
  }
  if (!offer.is_step_serving && offer.step.is_serving()) {
    // It has begun to serve since, and may not have told this link, which it did not know yet.
    sender_->OnStepServing(step_id);
    needs_drain_.store(true, std::memory_order_relaxed);
  }
  if (decision.needs_drain) needs_drain_.store(true, std::memory_order_relaxed);
  absl::Status status;
  if (!decision.pulls.empty()) status = SendFrame();
  for (const EagerPullMessage& pull : decision.pulls) {
    FERRY_LOG_DEBUG(kTransport, "PULL sent: peer={} scope={}", consumer_.node_id,
                    ToString(pull.scope));
    status.Update(SendEagerPull(*channel_, pull));
  }
  if (decision.is_sent && status.ok()) status = SendValue(offer, decision);
  // Also for a step that began to be flushed before it had sent its first value here.
  const bool asks_for_acks =
      decision.asks_for_acks ||
      (decision.is_sent && offer.step.is_flushing() && sender_->StartFlush(step_id));
  if (asks_for_acks && status.ok()) status = SendFrame();
  if (asks_for_acks && status.ok()) status = SendAckNow(*channel_, step_id);
  if (status.ok()) {
    if (decision.is_first_unacknowledged) {
      operations_[step_id].Begin(offer.step.operations());
    }
    return decision.is_sent;
  }
  // A frame is missing, so the control channel cannot be used any more. The value stays here.
  channel_->Close(status);
  if (decision.is_sent) sender_->OnRejected(kEagerRejectedBit | decision.sequence).IgnoreError();
  return false;
}

absl::Status EagerOutbox::SendValue(const Offer& offer, const EagerSender::Decision& decision) {
  FERRY_LOG_DEBUG(kTransport, "value sent before its request: peer={} step={} sequence={} key={}",
                  consumer_.node_id, offer.step.step_id(), decision.sequence,
                  absl::CEscape(offer.key.text()));
  const bool has_text = decision.name == 0 || decision.defines_name;
  if (frame_.count() == 0 && !offer.more_follow && !has_text &&
      (offer.is_dead || offer.tensor.shape().rank() <= 1)) {
    return SendEagerVector(*channel_, offer.step.step_id(),
                           static_cast<uint32_t>(decision.sequence), decision.name,
                           offer.is_dead ? nullptr : &offer.tensor);
  }
  EagerHead head;
  head.step_id = offer.step.step_id();
  head.sequence = static_cast<uint32_t>(decision.sequence);
  head.count = 1;
  EagerRecord record;
  record.name = decision.name;
  if (has_text) record.text = offer.key.text();
  record.is_dead = offer.is_dead;
  if (!offer.is_dead) {
    record.header = {offer.tensor.dtype(), offer.tensor.shape(), offer.tensor.bytes()};
    record.payload = {static_cast<const char*>(offer.tensor.data()), offer.tensor.bytes()};
  }
  if (frame_.count() == 0 && !offer.more_follow) return SendEagerValue(*channel_, head, record);
  if (frame_.count() != 0 && frame_.step_id() == head.step_id && frame_.AppendInPlace(record)) {
    return offer.more_follow ? absl::OkStatus() : SendFrame();
  }
  FERRY_RETURN_IF_ERROR(SendFrame());
  if (!offer.more_follow) return SendEagerValue(*channel_, head, record);
  frame_.Start(head.step_id, head.sequence);
  frame_.AppendInPlace(record);
  has_unsent_.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status EagerOutbox::SendFrame() {
  if (frame_.count() == 0) return absl::OkStatus();
  const absl::Status status = SendEager(*channel_, frame_);
  frame_.Start(0, 0);
  has_unsent_.store(false, std::memory_order_relaxed);
  return status;
}

void EagerOutbox::SendUnsent() {
  SpinLockHolder lock(&mu_);
  const absl::Status status = SendFrame();
  if (!status.ok()) channel_->Close(status);
}

void EagerOutbox::Drain() {
  while (true) {
    std::optional<std::pair<int64_t, RendezvousKey>> next;
    {
      SpinLockHolder lock(&mu_);
      needs_drain_.store(false, std::memory_order_relaxed);
      if (sender_.has_value()) next = sender_->NextToDrain();
    }
    if (!next.has_value()) return;
    const auto step = context_.manager->FindOpen(next->first);
    if (step != nullptr) step->OfferQueued(next->second, *this);
  }
}

absl::Status EagerOutbox::OnPush(const ControlChannel& channel, absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const EagerScope scope, DecodeEagerPush(body));
  EagerSender::Scan scan;
  {
    SpinLockHolder lock(&mu_);
    if (!IsCurrent(channel)) return absl::OkStatus();
    FERRY_ASSIGN_OR_RETURN(scan, sender_->OnPush(scope));
    push_count_.fetch_add(1, std::memory_order_release);
    is_started_.store(true, std::memory_order_release);
  }
  FERRY_LOG_DEBUG(kTransport, "PUSH received: peer={} scope={}", consumer_.node_id,
                  ToString(scope));
  if (scan.is_needed) Scan(scan.key);
  Drain();
  return absl::OkStatus();
}

void EagerOutbox::Scan(const std::optional<RendezvousKey>& key) {
  const TaskName consumer = {.job = "worker", .replica = 0, .task = consumer_.node_id};
  for (const auto& step : context_.manager->Steps()) {
    const auto add = [&](const RendezvousKey& queued) {
      SpinLockHolder lock(&mu_);
      if (!sender_.has_value()) return;
      if (sender_->AddToDrain(step->step_id(), queued) && !step->AddSendLink(*this)) {
        sender_->OnStepEnd(step->step_id(), [](uint64_t, const EagerSender::Record&) {});
      }
    };
    if (!key.has_value()) {
      step->ForEachQueued(consumer, add);
    } else if (step->HasQueued(*key)) {
      add(*key);
    }
  }
}

const ControlChannel* EagerOutbox::channel() const {
  SpinLockHolder lock(&mu_);
  return channel_.get();
}

void EagerOutbox::OfferAll() {
  // Before, the first PUSH does it.
  if (!is_started_.load(std::memory_order_acquire)) return;
  Scan(std::nullopt);
  Drain();
}

void EagerOutbox::OnStepServing(int64_t step_id) {
  {
    SpinLockHolder lock(&mu_);
    if (sender_.has_value()) sender_->OnStepServing(step_id);
  }
  Drain();
}

void EagerOutbox::EndIfReceived(int64_t step_id, std::vector<StepOperation>& ended) {
  if (sender_->unacknowledged(step_id) != 0) return;
  const auto found = operations_.find(step_id);
  if (found == operations_.end()) return;
  ended.push_back(std::move(found->second));
  operations_.erase(found);
}

absl::Status EagerOutbox::OnAck(const ControlChannel& channel, absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const EagerRanges ranges, DecodeEagerAck(body));
  // A consumer holds no more.
  uint64_t values = 0;
  for (const EagerRange& range : ranges) values += range.count;
  if (values > uint64_t{context_.eager->limits().peer_values} + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("an EAGER_ACK of ", values, " values, more than the limit"));
  }
  for (const EagerRange& range : ranges) FERRY_RETURN_IF_ERROR(OnAcknowledged(channel, range));
  return absl::OkStatus();
}

absl::Status EagerOutbox::OnAcknowledged(const ControlChannel& channel, const EagerRange& range) {
  std::vector<StepOperation> ended;
  {
    SpinLockHolder lock(&mu_);
    if (!IsCurrent(channel)) return absl::OkStatus();
    absl::InlinedVector<int64_t, 4> steps;
    FERRY_RETURN_IF_ERROR(sender_->OnAck(range, [&steps](uint64_t, const EagerSender::Sent& sent) {
      if (steps.empty() || steps.back() != sent.step_id) steps.push_back(sent.step_id);
    }));
    for (const int64_t step_id : steps) EndIfReceived(step_id, ended);
  }
  return absl::OkStatus();
}

absl::Status EagerOutbox::OnRejected(const ControlChannel& channel, uint64_t id,
                                     const absl::Status& why) {
  Deferred deferred;
  {
    SpinLockHolder lock(&mu_);
    if (!IsCurrent(channel)) return absl::OkStatus();
    FERRY_ASSIGN_OR_RETURN(const std::optional<EagerSender::Record> record,
                           sender_->OnRejected(id));
    if (!record.has_value()) return absl::OkStatus();
    FERRY_LOG_DEBUG(kTransport, "tensor rejected: peer={} step={} sequence={} reason={} key={}",
                    consumer_.node_id, record->step_id, id & ~kEagerRejectedBit, why,
                    absl::CEscape(record->key.text()));
    deferred.losses.push_back({record->step_id, record->key});
    EndIfReceived(record->step_id, deferred.ended);
  }
  Run(std::move(deferred), why);
  return absl::OkStatus();
}

absl::Status EagerOutbox::OnStepRefused(const ControlChannel& channel, absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const int64_t step_id, DecodeStepRefused(body));
  SpinLockHolder lock(&mu_);
  if (IsCurrent(channel)) sender_->OnStepRefused(step_id);
  return absl::OkStatus();
}

std::optional<RendezvousKey> EagerOutbox::FindName(const ControlChannel& channel,
                                                   uint32_t name) const {
  SpinLockHolder lock(&mu_);
  const RendezvousKey* const key = IsCurrent(channel) ? sender_->FindName(name) : nullptr;
  return key == nullptr ? std::nullopt : std::optional(*key);
}

void EagerOutbox::StartFlush(int64_t step_id) {
  SpinLockHolder lock(&mu_);
  if (!sender_.has_value() || !sender_->has_step(step_id) || !sender_->StartFlush(step_id)) return;
  absl::Status status = SendFrame();
  if (status.ok()) status = SendAckNow(*channel_, step_id);
  if (!status.ok()) channel_->Close(status);
}

void EagerOutbox::EndFlush(int64_t step_id) {
  SpinLockHolder lock(&mu_);
  if (sender_.has_value()) sender_->EndFlush(step_id);
}

void EagerOutbox::OnStepEnd(RemoteRendezvous& step, const absl::Status& why) {
  Deferred deferred;
  {
    SpinLockHolder lock(&mu_);
    if (!sender_.has_value()) return;
    const absl::Status sent = SendFrame();
    if (!sent.ok()) channel_->Close(sent);
    sender_->OnStepEnd(step.step_id(), [&](uint64_t, const EagerSender::Record& record) {
      deferred.losses.push_back({record.step_id, record.key});
    });
    const auto found = operations_.find(step.step_id());
    if (found != operations_.end()) {
      deferred.ended.push_back(std::move(found->second));
      operations_.erase(found);
    }
  }
  // The manager may have forgotten the step.
  for (const Loss& loss : deferred.losses) step.RecordSendFailure(loss.key, why);
}

void EagerOutbox::ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const {
  std::vector<EagerSender::Record> records;
  {
    SpinLockHolder lock(&mu_);
    if (!sender_.has_value()) return;
    sender_->ForEachRecord(
        [&records](uint64_t, const EagerSender::Record& record) { records.push_back(record); });
  }
  const int64_t now = context_.clock->CoarseNanos();
  for (const EagerSender::Record& record : records) {
    const absl::Duration age = absl::Nanoseconds(now - record.since);
    if (age < min_age) continue;
    visit({.step_id = record.step_id,
           .key = record.key,
           .side = PendingStepOp::Side::kTransfer,
           .bytes = record.bytes,
           .age = age,
           .phase = absl::StrCat(
               "sent to ", Describe(consumer_),
               record.is_refused ? ", whose step is over" : "; not received there yet"),
           .outlives_sender = false});
  }
}

TableSizes EagerOutbox::InnerTableSizes() const {
  SpinLockHolder lock(&mu_);
  TableSizes sizes = sender_.has_value() ? sender_->InnerTableSizes() : TableSizes();
  sizes["eager_sender.operations"] = operations_.size();
  return sizes;
}

}  // namespace ferry
