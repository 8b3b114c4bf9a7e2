// SPDX-License-Identifier: Apache-2.0
// Arrival of values, and the receives that wait for them.
#include "rendezvous/peer/eager_inbox.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/logging.h"
#include "base/status_macros.h"
#include "rendezvous/peer/eager_inbox_batch.h"
#include "rendezvous/peer/peer_protocol.h"
#include "rendezvous/peer/rejection.h"
#include "rendezvous/rendezvous_manager.h"
#include "tensor/check_values.h"
#include "transport/inline_threshold.h"

namespace ferry {

EagerInbox::EagerInbox(const TransferContext& context, const EagerLimits& limits,
                       const PeerId& producer, const RunAfter& run_after)
    : context_(context),
      limits_(limits),
      producer_(producer),
      run_after_(run_after),
      receiver_(limits) {}

EagerInbox::~EagerInbox() = default;

EagerInbox::Batch* EagerInbox::EmptyBatch() {
  if (batch_ == nullptr) batch_ = std::make_unique<Batch>();
  batch_->Clear();
  return batch_.get();
}

bool EagerInbox::IsFromProducer(const RendezvousKey& key) const {
  return key.src_task_number() == producer_.node_id &&
         key.src_incarnation() == producer_.incarnation;
}

bool EagerInbox::IsExpected(const RendezvousKey& key) const {
  return IsFromProducer(key) && key.dst_task_number() == context_.self.peer.node_id;
}

void EagerInbox::OnOpen(std::shared_ptr<ControlChannel> channel) {
  bool had_channel = false;
  {
    SpinLockHolder lock(&mu_);
    had_channel = channel_ != nullptr;
    if (had_channel) Reset();
  }
  if (had_channel) {
    EndWaiting(absl::UnavailableError(
        absl::StrCat(Describe(producer_), " has opened another connection")));
  }
  SpinLockHolder lock(&mu_);
  channel_ = std::move(channel);
  receiver_.Start();
  SendOutput();
}

void EagerInbox::Reset() {
  const uint64_t requests = receiver_.requests_being_sent();
  receiver_ = EagerReceiver(limits_);
  receiver_.AddRequestsBeingSent(requests);
  channel_.reset();
  is_closing_ = false;
  unsent_watches_.clear();
  watches_.clear();
  ++epoch_;
}

void EagerInbox::OnClosing(const ControlChannel& channel) {
  SpinLockHolder lock(&mu_);
  if (IsCurrent(channel)) is_closing_ = true;
}

void EagerInbox::OnClosed(const ControlChannel& channel, const absl::Status& why) {
  {
    SpinLockHolder lock(&mu_);
    if (!IsCurrent(channel)) return;
    Reset();
  }
  EndWaiting(absl::Status(why.code(), absl::StrCat(why.message(), " (while waiting for a value)")));
}

void EagerInbox::EndWaiting(const absl::Status& why) {
  for (auto& step : context_.manager->Steps()) {
    if (!step->is_serving()) {
      DropUnopened(std::move(step));
      continue;
    }
    step->EndWaiting(
        [&](const RendezvousKey& key) { return IsFromProducer(key) ? why : absl::OkStatus(); });
  }
}

void EagerInbox::DropUnopened(std::shared_ptr<RemoteRendezvous> step) {
  step->DropArrivals([this](const RendezvousKey& key) { return IsFromProducer(key); });
  const int64_t step_id = step->step_id();
  {
    SpinLockHolder lock(&mu_);
    EndStep(step_id);
  }
  step.reset();
  context_.manager->ForgetIfUnused(step_id);
}

void EagerInbox::BeforeClose() {
  SpinLockHolder lock(&mu_);
  SendOutput(/*all=*/true);
}

void EagerInbox::HoldRequests() {
  SpinLockHolder lock(&mu_);
  receiver_.AddRequestsBeingSent(1);
}

uint32_t EagerInbox::NumberForRequest(const ControlChannel& channel,
                                      const RendezvousKey& key) const {
  SpinLockHolder lock(&mu_);
  return IsCurrent(channel) ? receiver_.NumberForRequest(key) : 0;
}

EagerRecvLink::Route EagerInbox::OnReceive(RemoteRendezvous& step, const RendezvousKey& key,
                                           absl::Status& why) {
  SpinLockHolder lock(&mu_);
  if (channel_ == nullptr || is_closing_) {
    receiver_.AddRequestsBeingSent(1);
    return Route::kRequest;
  }
  EagerReceiver::Decision decision = receiver_.OnReceive(step.step_id(), key);
  if (decision.is_new_step) step.AddRecvLink(*this);
  if (decision.needs_watch) QueueWatch(step.step_id());
  switch (decision.route) {
    case EagerReceiver::Route::kWait:
      return Route::kWait;
    case EagerReceiver::Route::kRequest:
      return Route::kRequest;
    case EagerReceiver::Route::kFail:
      why = std::move(decision.status);
      return Route::kFail;
  }
  return Route::kRequest;
}

bool EagerInbox::MayWait(RemoteRendezvous& step, size_t key_bytes) {
  SpinLockHolder lock(&mu_);
  if (channel_ == nullptr || is_closing_) return false;
  EagerReceiver::Decision decision;
  const bool may_wait = receiver_.MayWait(step.step_id(), key_bytes, decision);
  if (decision.is_new_step) step.AddRecvLink(*this);
  if (decision.needs_watch) QueueWatch(step.step_id());
  return may_wait;
}

void EagerInbox::QueueWatch(int64_t step_id) {
  unsent_watches_.push_back(step_id);
  RequestTimer();
}

void EagerInbox::OnConverted(const RendezvousKey& key) {
  SpinLockHolder lock(&mu_);
  (void)key;
  receiver_.AddRequestsBeingSent(1);
}

void EagerInbox::OnRequested() {
  SpinLockHolder lock(&mu_);
  receiver_.OnRequestSent();
  SendOutput();
}

absl::Status EagerInbox::Check(const TensorHeader& header, bool is_dead,
                               const RecvArgs& args) const {
  if (is_dead) return absl::OkStatus();
  if (context_.policy.forbids_tcp() && header.bytes > kInlineMaxTcpForbidden) {
    return WrongTransport(InlineTransport(*context_.transports), context_.policy.require, producer_,
                          context_.self.peer);
  }
  const Destination& wanted = args.destination;
  if (wanted.is_valid() && (wanted->dtype() != header.dtype || wanted->bytes() != header.bytes)) {
    return BufferMismatch(header, *wanted);
  }
  return absl::OkStatus();
}

void EagerInbox::Finish(const EagerReceiver::Arrival& arrival, const absl::Status& status) {
  if (status.ok()) {
    receiver_.OnTaken(arrival);
  } else {
    const uint64_t id = receiver_.OnRejected(arrival);
    if (channel_ != nullptr) {
      CloseOnError(SendRejected(
          *channel_, {.id = id, .status = status, .step_id = arrival.step_id, .key = {}}));
    }
  }
}

absl::Status EagerInbox::OnTaken(Tensor& tensor, SendArgs& args, const RecvArgs& recv_args) {
  // Only this class puts values into the table of arrivals.
  const std::shared_ptr<const ArrivalTag> kept =
      std::static_pointer_cast<const ArrivalTag>(std::move(args.device_context));
  args.device_context.reset();
  TensorHeader header;
  if (tensor.is_valid()) header = {tensor.dtype(), tensor.shape(), tensor.bytes()};
  absl::Status status = Check(header, !tensor.is_valid(), recv_args);
  SpinLockHolder lock(&mu_);
  if (kept->epoch == epoch_ && receiver_.has_step(kept->arrival.step_id)) {
    Finish(kept->arrival, status);
    SendOutput();
    RequestTimer();
  }
  return status;
}

bool EagerInbox::NoteArrival(RemoteRendezvous& step, const EagerReceiver::Arrival& arrival) {
  // The end of the step may be under way, and is told to this link only once.
  if (arrival.is_new_step && !step.AddRecvLink(*this)) {
    EndStep(arrival.step_id, /*may_begin_again=*/false);
    return false;
  }
  // Nothing else may ever end it here.
  if (!step.is_serving() && receiver_.StartWatch(arrival.step_id)) QueueWatch(arrival.step_id);
  return true;
}

std::optional<RendezvousKey> EagerInbox::DefinedKey(const RemoteRendezvous* step,
                                                    const EagerRecord& record) {
  if (record.text.empty()) return std::nullopt;
  // Parsing takes longer than the rest, and a receive that waits has the key.
  if (step != nullptr) {
    if (auto known = step->FindArrivalKey(record.text); known.has_value()) return known;
  }
  absl::StatusOr<RendezvousKey> parsed = RendezvousKey::Parse(record.text);
  return parsed.ok() ? std::optional(*std::move(parsed)) : std::nullopt;
}

absl::StatusOr<RendezvousKey> EagerInbox::ReadKey(int64_t step_id, const EagerRecord& record,
                                                  std::optional<RendezvousKey> known) {
  if (record.is_serialized || record.has_checksum) {
    return absl::InvalidArgumentError("EAGER: serialized values and checksums are not supported");
  }
  absl::StatusOr<RendezvousKey> key = receiver_.OnRecord(record, std::move(known));
  if (!key.ok()) return key;
  if (!record.text.empty() && !IsExpected(*key)) {
    return absl::InvalidArgumentError("EAGER: a value for or from another node");
  }
  FERRY_LOG_DEBUG(kTransport, "value arrived: peer={} step={} bytes={} key={}", producer_.node_id,
                  step_id, record.payload.size(), absl::CEscape(key->text()));
  return key;
}

void EagerInbox::Drop(int64_t step_id) {
  const EagerReceiver::StepEnd end = receiver_.OnDropped();
  absl::Status status;
  if (!end.acks.empty()) status = SendEagerAck(*channel_, end.acks);
  if (end.is_refused && status.ok()) status = SendStepRefused(*channel_, step_id);
  CloseOnError(status);
}

void EagerInbox::SendOutput(bool all) {
  if (channel_ == nullptr || !(all || receiver_.has_output())) return;
  const EagerReceiver::Output output = receiver_.TakeOutput(all);
  absl::Status status;
  if (!output.acks.empty()) status = SendEagerAck(*channel_, output.acks);
  for (const EagerScope& scope : output.pushes) {
    FERRY_LOG_DEBUG(kTransport, "PUSH sent: peer={} scope={}", producer_.node_id, ToString(scope));
    if (status.ok()) status = SendEagerPush(*channel_, scope);
  }
  CloseOnError(status);
}

void EagerInbox::CloseOnError(const absl::Status& status) {
  if (!status.ok()) channel_->Close(status);
}

void EagerInbox::RequestTimer() {
  if (channel_ == nullptr || is_timer_running_) return;
  if (unsent_watches_.empty() && !receiver_.has_acks()) return;
  needs_timer_.store(true, std::memory_order_relaxed);
}

void EagerInbox::StartTimer() {
  {
    SpinLockHolder lock(&mu_);
    needs_timer_.store(false, std::memory_order_relaxed);
    if (is_timer_running_) return;
    is_timer_running_ = true;
  }
  run_after_(kMaxAckDelay, [this] { OnTimer(); });
}

void EagerInbox::OnTimer() {
  SpinLockHolder lock(&mu_);
  is_timer_running_ = false;
  if (channel_ == nullptr) return;
  for (const int64_t step_id : unsent_watches_) {
    const uint64_t id = kWatchBit | ++last_watch_;
    watches_.emplace(id, step_id);
    CloseOnError(SendWatch(*channel_, id, step_id));
  }
  unsent_watches_.clear();
  SendOutput(/*all=*/true);
}

void EagerInbox::OnStepEnd(int64_t step_id, bool may_begin_again) {
  SpinLockHolder lock(&mu_);
  EndStep(step_id, may_begin_again);
}

void EagerInbox::EndStep(int64_t step_id, bool may_begin_again) {
  const EagerReceiver::StepEnd end = receiver_.OnStepEnd(step_id, may_begin_again);
  const auto unsent = std::find(unsent_watches_.begin(), unsent_watches_.end(), step_id);
  const bool was_sent = unsent == unsent_watches_.end();
  if (!was_sent) unsent_watches_.erase(unsent);
  if (channel_ == nullptr) return;
  absl::Status status;
  if (end.has_watch && was_sent) {
    for (auto& [id, watched] : watches_) {
      if (watched != step_id) continue;
      // The step may begin again before the answer comes.
      watched.reset();
      status.Update(SendId(*channel_, PeerMessageType::kCancel, id));
    }
  }
  // Acknowledgements first: the rest of the step counts as lost.
  if (!end.acks.empty()) status.Update(SendEagerAck(*channel_, end.acks));
  if (end.is_refused) status.Update(SendStepRefused(*channel_, step_id));
  if (end.is_pushed) status.Update(SendEagerPush(*channel_, EagerScope::Step(step_id)));
  CloseOnError(status);
  SendOutput(/*all=*/true);
}

std::string EagerInbox::Phase() const {
  return absl::StrCat("waiting for ", Describe(producer_), ", from which it has not arrived");
}

absl::Status EagerInbox::FindStep(int64_t step_id, std::shared_ptr<RemoteRendezvous>& step) const {
  absl::StatusOr<std::shared_ptr<RemoteRendezvous>> found = context_.manager->Find(step_id);
  if (found.ok()) {
    step = *std::move(found);
  } else if (!absl::IsAborted(found.status())) {
    // Too many are open. It may be opened here later, and must not count as over.
    return found.status();
  }
  return absl::OkStatus();
}

// Values that are taken together, of one or more frames.
struct EagerInbox::Burst {
  static constexpr size_t kMost = 64;

  std::array<EagerPlainRecord, kMost> records;
  std::array<ArrivalTable::ItemPtr, kMost> receives;
  // Moved from once they are delivered.
  std::array<Tensor, kMost> tensors;
};

void EagerInbox::TakePosted(const ControlChannel& channel, EagerFrameReader& reader,
                            RemoteRendezvous& step) {
  if (burst_ == nullptr) burst_ = std::make_unique<Burst>();
  Burst& burst = *burst_;
  while (!reader.is_at_end() && step.has_posted()) {
    size_t count = 0;
    while (count < Burst::kMost && !reader.is_at_end() && reader.ReadPlain(burst.records[count])) {
      ++count;
    }
    if (count == 0) return;
    const size_t taken = step.TakePosted(
        count,
        [&](absl::Span<const ArrivalTable::ItemPtr> posted) {
          return MatchPosted(channel, absl::MakeConstSpan(burst.records).subspan(0, count), posted,
                             step.step_id(), absl::MakeSpan(burst.tensors));
        },
        burst.receives.data());
    for (size_t i = 0; i < taken; ++i) {
      LocalRendezvous::Complete(std::move(burst.receives[i]), absl::OkStatus(),
                                std::move(burst.tensors[i]), burst.records[i].is_dead,
                                ArrivalTable::kPath);
    }
    if (taken < count) return reader.PutBack(burst.records[taken], count - taken);
  }
}

size_t EagerInbox::MatchPosted(const ControlChannel& channel,
                               absl::Span<const EagerPlainRecord> records,
                               absl::Span<const ArrivalTable::ItemPtr> posted, int64_t step_id,
                               absl::Span<Tensor> tensors) {
  SpinLockHolder lock(&mu_);
  if (!IsCurrent(channel) || !receiver_.StartTaking()) return 0;
  size_t count = 0;
  uint64_t bytes = 0;
  for (; count < records.size() && count < posted.size() && posted[count] != nullptr; ++count) {
    const EagerPlainRecord& record = records[count];
    const RendezvousItem& receive = *posted[count];
    if (record.name == 0) {
      // The text is in memory of the producer's: it is not needed once it has been compared.
      if (!receiver_.HasRoom(count, bytes) || record.text != receive.key.text() ||
          receive.key.is_step_end() || !IsExpected(receive.key)) {
        break;
      }
    } else {
      const RendezvousKey* const key = receiver_.CanTake(record.name, count, bytes);
      if (key == nullptr) break;
      if (!key->IsSameObject(receive.key)) {
        if (!(*key == receive.key)) break;
        receiver_.AdoptKey(record.name, receive.key);
      }
    }
    if (!record.is_dead && !CopyPlain(record, receive.receive.args, tensors[count])) break;
    FERRY_LOG_DEBUG(kTransport, "value arrived: peer={} step={} bytes={} key={}", producer_.node_id,
                    step_id, record.bytes, absl::CEscape(receive.key.text()));
    bytes += record.bytes;
  }
  if (count == 0) return 0;
  receiver_.OnTaken(count, bytes);
  SendOutput();
  RequestTimer();
  return count;
}

bool EagerInbox::CopyPlain(const EagerPlainRecord& record, const RecvArgs& args,
                           Tensor& tensor) const {
  if (context_.policy.forbids_tcp() && record.bytes > kInlineMaxTcpForbidden) return false;
  const Destination& wanted = args.destination;
  if (wanted.is_valid()) {
    if (wanted->dtype() != record.dtype || wanted->bytes() != record.bytes ||
        !wanted->is_on_host()) {
      return false;
    }
    tensor = *wanted;
  } else {
    const absl::StatusOr<Shape> shape = record.shape();
    if (!shape.ok()) return false;
    absl::StatusOr<Tensor> made = Tensor::Allocate(record.dtype, *shape);
    // The extents may have changed since the record was read.
    if (!made.ok() || made->bytes() != record.bytes) return false;
    tensor = *std::move(made);
  }
  if (record.bytes == 0) return true;
  if (!HasIllegalBits(record.dtype)) {
    std::memcpy(tensor.mutable_data(), record.payload, record.bytes);
    return true;
  }
  // An error is reported on the general way.
  return CopyValues(record.dtype, record.payload, record.bytes, tensor.mutable_data(),
                    [] { return std::string(); })
      .ok();
}

absl::Status EagerInbox::OnEager(const ControlChannel& channel,
                                 absl::Span<const ControlFrame> frames,
                                 absl::FunctionRef<absl::Status(const EagerRange&)> acknowledge) {
  absl::Status status;
  while (status.ok() && !frames.empty()) {
    const absl::StatusOr<size_t> count = OnEagerBurst(channel, frames, acknowledge);
    status = count.status();
    frames.remove_prefix(count.value_or(0));
  }
  AfterReceive();
  return status;
}

absl::StatusOr<size_t> EagerInbox::OnEagerBurst(
    const ControlChannel& channel, absl::Span<const ControlFrame> frames,
    absl::FunctionRef<absl::Status(const EagerRange&)> acknowledge) {
  EagerFrameReader reader;
  FERRY_RETURN_IF_ERROR(reader.Start(frames[0].body));
  const EagerHead& head = reader.head();
  {
    SpinLockHolder lock(&mu_);
    if (!IsCurrent(channel)) return frames.size();
    FERRY_RETURN_IF_ERROR(receiver_.OnEager(head));
  }
  if (head.acked_count != 0) {
    FERRY_RETURN_IF_ERROR(acknowledge({head.acked_first, head.acked_count}));
  }
  size_t count = 1;
  while (count < frames.size() && reader.AddFrame(frames[count].body)) ++count;
  std::shared_ptr<RemoteRendezvous> step;
  FERRY_RETURN_IF_ERROR(FindStep(head.step_id, step));
  if (step != nullptr && step->is_serving()) TakePosted(channel, reader, *step);
  FERRY_RETURN_IF_ERROR(reader.is_at_end() ? reader.Finish()
                                           : ReadRecords(channel, reader, step.get()));
  return count;
}

absl::Status EagerInbox::ReadRecords(const ControlChannel& channel, EagerFrameReader& reader,
                                     RemoteRendezvous* step) {
  const int64_t step_id = reader.head().step_id;
  // A single value takes fewer locks without a batch.
  Batch* const batch = reader.remaining() > 1 ? EmptyBatch() : nullptr;
  absl::Status status;
  while (!reader.is_at_end()) {
    EagerRecord record;
    status = reader.Read(record);
    if (!status.ok()) break;
    if (batch == nullptr) {
      FERRY_RETURN_IF_ERROR(DeliverOne(channel, record, step_id, step));
      continue;
    }
    batch->Add(record);
    if (batch->is_full()) FERRY_RETURN_IF_ERROR(batch->Deliver(*this, step_id, step));
  }
  if (status.ok()) status = reader.Finish();
  // Also what was read before an error.
  if (batch != nullptr && !batch->is_empty()) {
    FERRY_RETURN_IF_ERROR(batch->Deliver(*this, step_id, step));
  }
  return status;
}

absl::Status EagerInbox::DeliverOne(const ControlChannel& channel, const EagerRecord& record,
                                    int64_t step_id, RemoteRendezvous* step) {
  std::optional<RendezvousKey> known = DefinedKey(step, record);
  mu_.Lock();
  const absl::StatusOr<RendezvousKey> key = ReadKey(step_id, record, std::move(known));
  mu_.Unlock();
  FERRY_RETURN_IF_ERROR(key.status());
  if (step != nullptr) {
    absl::Status violation;
    RecordValue arrival(*this, *step, *key, record, /*admitted=*/nullptr, violation);
    const absl::Status arrived = step->Arrive(*key, record.is_dead, arrival);
    FERRY_RETURN_IF_ERROR(violation);
    if (arrived.ok()) return absl::OkStatus();
  }
  SpinLockHolder lock(&mu_);
  if (IsCurrent(channel)) Drop(step_id);
  return absl::OkStatus();
}

absl::Status EagerInbox::OnPull(const ControlChannel& channel, absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const EagerPullMessage pull, DecodeEagerPull(body));
  std::shared_ptr<RemoteRendezvous> step;
  if (pull.scope.kind == EagerScopeKind::kStep) {
    FERRY_RETURN_IF_ERROR(FindStep(pull.scope.step_id, step));
  }
  std::optional<RendezvousKey> key;
  {
    SpinLockHolder lock(&mu_);
    if (!IsCurrent(channel)) return absl::OkStatus();
    FERRY_ASSIGN_OR_RETURN(const bool converts, receiver_.OnPull(pull, step == nullptr));
    // The end of the step may be under way, and is told to this link only once.
    if (step != nullptr && !step->AddRecvLink(*this)) EndStep(pull.scope.step_id);
    if (pull.scope.kind == EagerScopeKind::kName) key = *receiver_.FindName(pull.scope.name);
    if (!pull.definition.empty() && !IsExpected(*key)) {
      return absl::InvalidArgumentError("PULL: a name for or from another node");
    }
    if (!converts) {
      SendOutput();
      return absl::OkStatus();
    }
    // No PUSH before every receive that waits has been requested.
    receiver_.AddRequestsBeingSent(1);
  }
  FERRY_LOG_DEBUG(kTransport, "PULL received: peer={} scope={}", producer_.node_id,
                  ToString(pull.scope));
  const auto matches = [&](const RendezvousKey& each) {
    return key.has_value() ? each == *key : IsFromProducer(each);
  };
  if (pull.scope.kind == EagerScopeKind::kStep) {
    if (step != nullptr) step->RequestWaiting(*this, matches);
  } else {
    for (const auto& each : context_.manager->Steps()) each->RequestWaiting(*this, matches);
  }
  OnRequested();
  return absl::OkStatus();
}

absl::Status EagerInbox::OnAckNow(const ControlChannel& channel, absl::string_view body) {
  FERRY_ASSIGN_OR_RETURN(const int64_t step_id, DecodeAckNow(body));
  SpinLockHolder lock(&mu_);
  if (!IsCurrent(channel)) return absl::OkStatus();
  receiver_.OnAckNow(step_id);
  SendOutput();
  return absl::OkStatus();
}

absl::Status EagerInbox::OnWatchEnded(const ControlChannel& channel, uint64_t id,
                                      const absl::Status& status) {
  int64_t step_id = 0;
  {
    SpinLockHolder lock(&mu_);
    if (!IsCurrent(channel)) return absl::OkStatus();
    const auto found = watches_.find(id);
    if (found == watches_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("an ERROR for unknown WATCH ", id & ~kWatchBit));
    }
    const std::optional<int64_t> watched = found->second;
    watches_.erase(found);
    if (!watched.has_value()) return absl::OkStatus();
    step_id = *watched;
    receiver_.OnWatchEnded(step_id, status);
  }
  auto step = context_.manager->FindOpen(step_id);
  if (step == nullptr) return absl::OkStatus();
  if (!step->is_serving()) {
    DropUnopened(std::move(step));
    return absl::OkStatus();
  }
  step->EndWaiting(
      [&](const RendezvousKey& key) { return IsFromProducer(key) ? status : absl::OkStatus(); });
  return absl::OkStatus();
}

TableSizes EagerInbox::InnerTableSizes() const {
  SpinLockHolder lock(&mu_);
  TableSizes sizes = receiver_.InnerTableSizes();
  sizes["eager_receiver.watches"] = watches_.size() + unsent_watches_.size();
  return sizes;
}

}  // namespace ferry
