// SPDX-License-Identifier: Apache-2.0
// Matching or keeping of the values of EAGER frames.
#include "rendezvous/peer/eager_inbox_batch.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/recycled.h"
#include "base/status_macros.h"
#include "tensor/check_values.h"

namespace ferry {

absl::Status EagerInbox::RecordValue::Match(const RendezvousKey& key, const RecvArgs& args,
                                            Tensor& tensor) {
  FERRY_RETURN_IF_ERROR(violation_);
  absl::Status status = inbox_.Check(record_.header, record_.is_dead, args);
  if (status.ok() && !record_.is_dead) {
    const bool is_direct = args.destination.is_valid() && args.destination->is_on_host();
    if (is_direct) tensor = *args.destination;
    status = Copy(tensor);
  }
  if (admitted_ != nullptr) return status;
  SpinLockHolder lock(&inbox_.mu_);
  const absl::StatusOr<EagerReceiver::Arrival> arrival = Admit(/*is_taken=*/status.ok());
  if (!arrival.ok()) return arrival.status();
  if (!key.IsSameObject(key_)) inbox_.receiver_.AdoptKey(record_.name, key);
  if (!status.ok()) inbox_.Finish(*arrival, status);
  inbox_.SendOutput();
  inbox_.RequestTimer();
  return status;
}

absl::Status EagerInbox::RecordValue::Queue(Tensor& tensor, SendArgs& args) {
  FERRY_RETURN_IF_ERROR(violation_);
  if (!record_.is_dead) {
    const absl::Status copied = Copy(tensor);
    // Without memory for it the control channel ends too: the next value of its key must not be
    // received in its place.
    if (!copied.ok()) violation_ = copied;
    FERRY_RETURN_IF_ERROR(copied);
  }
  Admitted admitted;
  if (admitted_ != nullptr) {
    admitted = *admitted_;
  } else {
    SpinLockHolder lock(&inbox_.mu_);
    FERRY_ASSIGN_OR_RETURN(admitted.arrival, Admit(/*is_taken=*/false));
    admitted.epoch = inbox_.epoch_;
  }
  args.device_context =
      std::allocate_shared<ArrivalTag>(RecyclingAllocator<ArrivalTag>(), admitted);
  return absl::OkStatus();
}

absl::Status EagerInbox::RecordValue::Copy(Tensor& tensor) {
  const TensorHeader& header = record_.header;
  if (!tensor.is_valid()) {
    FERRY_ASSIGN_OR_RETURN(tensor, Tensor::Allocate(header.dtype, header.shape));
  }
  if (header.bytes == 0) return absl::OkStatus();
  absl::Status status = CopyValues(
      header.dtype, record_.payload.data(), header.bytes, tensor.mutable_data(),
      [&header] { return absl::StrCat(DataTypeName(header.dtype), ToString(header.shape)); });
  // The producer checks values before it sends them.
  if (!status.ok()) violation_ = status;
  return status;
}

absl::StatusOr<EagerReceiver::Arrival> EagerInbox::RecordValue::Admit(bool is_taken) {
  EagerReceiver& receiver = inbox_.receiver_;
  absl::StatusOr<EagerReceiver::Arrival> arrival =
      is_taken ? receiver.OnArrivalTaken(record_, receiver.last_sequence())
               : receiver.OnArrival(record_, receiver.last_sequence());
  if (!arrival.ok()) {
    violation_ = arrival.status();
  } else {
    // The abort of the step waits for the shard's lock, so it is not over.
    inbox_.NoteArrival(step_, *arrival);
  }
  return arrival;
}

void EagerInbox::Batch::Clear() {
  items_.clear();
  for (size_t i = 0; i < count_; ++i) entries_[i].reset();
  count_ = 0;
}

absl::Status EagerInbox::Batch::Deliver(EagerInbox& inbox, int64_t step_id,
                                        RemoteRendezvous* step) {
  absl::Status violation;
  for (size_t i = 0; i < count_; ++i) {
    entries_[i]->known = inbox.DefinedKey(step, entries_[i]->record);
  }
  const uint64_t epoch = Admit(inbox, step_id, step, violation);
  if (step != nullptr && !items_.empty()) {
    absl::Status failure;
    for (size_t i = 0; i < items_.size(); ++i) {
      Entry& entry = *entries_[i];
      items_[i].value =
          &entry.value.emplace(inbox, *step, *entry.key, entry.record, &entry.admitted, failure);
    }
    step->ArriveMany(absl::MakeSpan(items_),
                     [&] { Settle(inbox, step_id, *step, epoch, failure.ok()); });
    if (!failure.ok()) violation = std::move(failure);
  }
  Clear();
  return violation;
}

uint64_t EagerInbox::Batch::Admit(EagerInbox& inbox, int64_t step_id, RemoteRendezvous* step,
                                  absl::Status& violation) {
  SpinLockHolder lock(&inbox.mu_);
  for (size_t i = 0; i < count_ && violation.ok(); ++i) {
    Entry& entry = *entries_[i];
    absl::StatusOr<RendezvousKey> key =
        inbox.ReadKey(step_id, entry.record, std::move(entry.known));
    if (!key.ok()) {
      violation = key.status();
    } else if (step != nullptr) {
      const absl::StatusOr<EagerReceiver::Arrival> admitted =
          inbox.receiver_.OnArrival(entry.record, inbox.receiver_.last_sequence());
      if (!admitted.ok()) {
        violation = admitted.status();
        break;
      }
      entry.admitted = {*admitted, inbox.epoch_};
      entry.key = *std::move(key);
      items_.push_back({.key = &*entry.key, .is_dead = entry.record.is_dead});
      if (!inbox.NoteArrival(*step, *admitted)) step = nullptr;
    }
  }
  if (step == nullptr && violation.ok() && inbox.channel_ != nullptr) inbox.Drop(step_id);
  return inbox.epoch_;
}

void EagerInbox::Batch::Settle(EagerInbox& inbox, int64_t step_id, RemoteRendezvous& step,
                               uint64_t epoch, bool is_intact) {
  SpinLockHolder lock(&inbox.mu_);
  if (inbox.epoch_ != epoch) return;
  const bool is_open = inbox.receiver_.has_step(step_id);
  bool is_dropped = false;
  for (size_t i = 0; i < items_.size(); ++i) {
    LocalRendezvous::ArrivalItem& item = items_[i];
    const Entry& entry = *entries_[i];
    if (item.receive == nullptr) {
      if (item.status.ok() || !is_intact) continue;
      is_dropped = true;
      if (is_open) inbox.receiver_.OnWithdrawn(entry.admitted.arrival);
    } else if (is_open) {
      const RendezvousKey& key = item.receive->key;
      if (!key.IsSameObject(*entry.key)) inbox.receiver_.AdoptKey(entry.record.name, key);
      inbox.Finish(entry.admitted.arrival, item.status);
    } else if (item.status.ok()) {
      // The step has ended meanwhile, and the value has been refused.
      item.status = step.abort_status();
    }
  }
  if (is_dropped && inbox.channel_ != nullptr) inbox.Drop(step_id);
  inbox.SendOutput();
  inbox.RequestTimer();
}

}  // namespace ferry
