// SPDX-License-Identifier: Apache-2.0
// Transfers of a batch agreement endpoint: adding, cancelling, and expiring before agreement.
#include "transport/nccl/batch_agreement_endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry {
namespace {

constexpr char kWhyPaused[] = "it waits for memory, or a program has NCCL work";

}  // namespace

absl::Status BatchAgreementEndpoint::Insert(const BatchAgreementTransfer& transfer,
                                            GrantActions& actions) {
  const TransferKey& key = transfer.key;
  if (key.source == key.destination || (key.source != self_ && key.destination != self_) ||
      key.source.value() < 0 || key.destination.value() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(key), " is not between ", Describe(self_), " and another one"));
  }
  Transfer added;
  added.bytes = transfer.bytes;
  added.since = clock_->Now();
  added.deadline = transfer.deadline;
  added.order = ++last_order_;
  if (!transfers_.emplace(key, added).second) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(key), " is already here"));
  }
  by_deadline_.emplace(transfer.deadline, key);
  pending_[PeerOf(key)].emplace(added.order, key);
  const auto dead = dead_.find(PeerOf(key));
  if (dead != dead_.end()) Finish(key, dead->second, actions);
  return absl::OkStatus();
}

absl::Status BatchAgreementEndpoint::Add(const BatchAgreementTransfer& transfer,
                                         GrantActions& actions) {
  FERRY_RETURN_IF_ERROR(Insert(transfer, actions));
  const DeviceId peer = PeerOf(transfer.key);
  if (self_ < peer) {
    Schedule(peer);
  } else if (transfer.key.source == self_) {
    Propose(transfer.key, actions);
  }
  Advance(actions);
  return absl::OkStatus();
}

absl::Status BatchAgreementEndpoint::AddWithGrant(const BatchAgreementTransfer& transfer,
                                                  const BatchAgreementMessage& grant,
                                                  GrantActions& actions) {
  FERRY_RETURN_IF_ERROR(Insert(transfer, actions));
  // Before its turn is taken, which would make this device busy.
  absl::Status status = OnMessage(grant, actions);
  if (self_ < PeerOf(transfer.key)) Schedule(PeerOf(transfer.key));
  Advance(actions);
  return status;
}

void BatchAgreementEndpoint::Unqueue(const TransferKey& key, const Transfer& transfer) {
  const auto row = pending_.find(PeerOf(key));
  row->second.erase(transfer.order);
  if (row->second.empty()) pending_.erase(row);
}

size_t BatchAgreementEndpoint::PlaceOf(const TransferKey& key) const {
  const auto row = pending_.find(PeerOf(key));
  const auto transfer = transfers_.find(key);
  if (row == pending_.end() || transfer == transfers_.end()) return 0;
  return static_cast<size_t>(
      std::distance(row->second.begin(), row->second.lower_bound(transfer->second.order)));
}

void BatchAgreementEndpoint::Requeue(const TransferKey& key, Transfer& transfer) {
  transfer.phase = Phase::kPending;
  pending_[PeerOf(key)].emplace(transfer.order, key);
}

void BatchAgreementEndpoint::Finish(const TransferKey& key, absl::Status status,
                                    GrantActions& actions) {
  const auto found = transfers_.find(key);
  FERRY_CHECK(found != transfers_.end());
  if (found->second.phase == Phase::kPending) Unqueue(key, found->second);
  by_deadline_.erase({found->second.deadline, key});
  transfers_.erase(found);
  actions.push_back(FinishTransfer{key, std::move(status)});
}

void BatchAgreementEndpoint::SendCancel(DeviceId peer, absl::Span<const TransferKey> keys,
                                        const absl::Status& why, GrantActions& actions) {
  if (dead_.contains(peer)) return;
  while (!keys.empty()) {
    BatchAgreementMessage message = Message(BatchAgreementMessageKind::kCancel, peer, {});
    for (const TransferKey& key : keys.subspan(0, kMaxBatchOperations)) {
      message.operations.push_back({key, 0});
    }
    message.why = why;
    keys.remove_prefix(message.operations.size());
    actions.push_back(SendMessage{std::move(message)});
  }
}

void BatchAgreementEndpoint::Cancel(const TransferKey& key, const absl::Status& why,
                                    GrantActions& actions) {
  const auto found = transfers_.find(key);
  if (found == transfers_.end()) return;
  Transfer& transfer = found->second;
  if (transfer.phase == Phase::kPending) {
    Finish(key, why, actions);
  } else if (transfer.phase == Phase::kGranted && transfer.end_reason.ok()) {
    // The peer rejects it unless it has already answered.
    transfer.end_reason = why;
  } else {
    return;
  }
  SendCancel(PeerOf(key), {key}, why, actions);
}

void BatchAgreementEndpoint::OnCancel(const BatchAgreementMessage& message, GrantActions& actions) {
  for (const BatchAgreementOperation& operation : message.operations) {
    const auto found = transfers_.find(operation.key);
    if (found == transfers_.end()) continue;
    const absl::Status why(message.why.code(),
                           absl::StrCat(Describe(message.from), " says: ", message.why.message()));
    if (found->second.phase == Phase::kPending) {
      Finish(operation.key, why, actions);
    } else if (found->second.phase == Phase::kGranted && found->second.end_reason.ok()) {
      found->second.end_reason = why;
    }
  }
}

absl::Status BatchAgreementEndpoint::OnMessage(const BatchAgreementMessage& message,
                                               GrantActions& actions) {
  if (message.to != self_ || message.from == self_) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(message), " has come to ", Describe(self_)));
  }
  for (const BatchAgreementOperation& operation : message.operations) {
    const TransferKey& key = operation.key;
    if ((key.source != self_ && key.destination != self_) || key.source == key.destination ||
        PeerOf(key) != message.from) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(message), " speaks of ", Describe(key)));
    }
  }
  // Sent before the device failed.
  if (dead_.contains(message.from)) return absl::OkStatus();
  switch (message.kind) {
    case BatchAgreementMessageKind::kGrant:
      if (message.serial <= std::exchange(last_serials_[message.from], message.serial)) {
        return absl::InvalidArgumentError(
            absl::StrCat(Describe(message), " has come a second time, or too late"));
      }
      OnGrant(message, actions);
      break;
    case BatchAgreementMessageKind::kAcknowledge:
      OnAcknowledge(message, actions);
      break;
    case BatchAgreementMessageKind::kDecline:
      OnDecline(message, actions);
      break;
    case BatchAgreementMessageKind::kDone:
      OnDone(message, actions);
      break;
    case BatchAgreementMessageKind::kCancel:
      OnCancel(message, actions);
      break;
    case BatchAgreementMessageKind::kBreak:
      OnBreak(message, actions);
      break;
    case BatchAgreementMessageKind::kSettled:
      OnSettled(message, actions);
      break;
    case BatchAgreementMessageKind::kResumed:
      OnResumed(message);
      break;
  }
  Advance(actions);
  return absl::OkStatus();
}

absl::Time BatchAgreementEndpoint::NextDeadline() const {
  return by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
}

void BatchAgreementEndpoint::Expire(GrantActions& actions) {
  const absl::Time now = clock_->Now();
  std::vector<TransferKey> due;
  for (const auto& [deadline, key] : by_deadline_) {
    if (deadline > now) break;
    due.push_back(key);
  }
  for (const TransferKey& key : due) {
    // Expiring an earlier transfer may have ended this one too.
    if (transfers_.contains(key)) ExpireOne(key, now, actions);
  }
  Advance(actions);
}

void BatchAgreementEndpoint::ExpireOne(const TransferKey& key, absl::Time now,
                                       GrantActions& actions) {
  Transfer& transfer = transfers_.find(key)->second;
  const absl::Status why = absl::DeadlineExceededError(
      absl::StrCat(Describe(key), " (", transfer.bytes, " bytes): waited ",
                   ShortDuration(now - transfer.since), " for ", WaitsFor(key, transfer)));
  if (transfer.phase == Phase::kPending || transfer.phase == Phase::kGranted) {
    Cancel(key, why, actions);
  }
  if (!transfers_.contains(key)) return;
  if (std::exchange(transfer.is_overdue, true)) {
    const std::optional<BatchName> batch = BatchOf(key);
    if (!batch.has_value()) {
      Finish(key, why, actions);
    } else if (IsOpen(batch->communicator)) {
      BreakAll({batch->communicator}, why, {}, actions);
    } else if (transfer.phase == Phase::kUnacknowledged) {
      Unacknowledged& sent = unacknowledged_.find(*batch)->second;
      sent.keys.erase(std::find(sent.keys.begin(), sent.keys.end(), key));
      Finish(key, why, actions);
    }
  }
  const auto still = transfers_.find(key);
  if (still == transfers_.end()) return;
  by_deadline_.erase({still->second.deadline, key});
  still->second.deadline = now + options_.abort_grace;
  by_deadline_.emplace(still->second.deadline, key);
}

std::string BatchAgreementEndpoint::WaitsFor(const TransferKey& key,
                                             const Transfer& transfer) const {
  const DeviceId peer = PeerOf(key);
  CommunicatorName name;
  switch (transfer.phase) {
    case Phase::kPending:
      if (Usable(peer, name) == nullptr) {
        return absl::StrCat("a communicator with ", Describe(peer), "; none is open on ",
                            Describe(self_));
      }
      if (peer < self_) return absl::StrCat(Describe(peer), " to grant it");
      if (is_paused_) {
        return absl::StrCat("its turn on ", Describe(self_), ", which agrees on nothing new while ",
                            kWhyPaused);
      }
      if (holding_back_.contains(peer)) {
        return absl::StrCat(Describe(peer), ", which agrees on nothing new while ", kWhyPaused);
      }
      if (!IsLocked()) {
        return absl::StrCat("its turn on ", Describe(self_), ", where ", queue_.size(),
                            " batches are agreed");
      }
      return absl::StrCat("its turn on ", Describe(self_), ", which waits for ",
                          Describe(grants_.front().peer), " to answer a grant");
    case Phase::kGranted:
      return absl::StrCat(Describe(peer), " to answer the grant");
    case Phase::kAgreed:
      return absl::StrCat("its turn in the queue of ", Describe(self_), ", where ", queue_.size(),
                          " batches are agreed");
    case Phase::kLaunched:
      return absl::StrCat("NCCL on ", Describe(self_), " to complete it with ", Describe(peer));
    case Phase::kUnacknowledged:
      return absl::StrCat(Describe(peer), " to say whether it has arrived");
  }
  return "";
}

std::optional<BatchName> BatchAgreementEndpoint::BatchOf(const TransferKey& key) const {
  const auto has = [&key](const std::vector<BatchAgreementOperation>& operations) {
    return std::any_of(
        operations.begin(), operations.end(),
        [&key](const BatchAgreementOperation& operation) { return operation.key == key; });
  };
  for (const Grant& grant : grants_) {
    if (has(grant.operations)) return grant.name;
  }
  for (const Agreed& agreed : queue_) {
    if (has(agreed.batch.operations)) return agreed.batch.name;
  }
  for (const auto& [name, sent] : unacknowledged_) {
    if (std::find(sent.keys.begin(), sent.keys.end(), key) != sent.keys.end()) return name;
  }
  return std::nullopt;
}

std::vector<std::string> BatchAgreementEndpoint::Pending() const {
  const absl::Time now = clock_->Now();
  std::vector<std::string> lines;
  for (const auto& [key, transfer] : transfers_) {
    lines.push_back(absl::StrCat(Describe(key), ": ", ShortDuration(now - transfer.since), ", ",
                                 WaitsFor(key, transfer)));
  }
  return lines;
}

TableSizes BatchAgreementEndpoint::InnerTableSizes() const {
  size_t pending = 0;
  size_t in_phase_pending = 0;
  for (const auto& [peer, keys] : pending_) pending += keys.size();
  for (const auto& [key, transfer] : transfers_) {
    in_phase_pending += transfer.phase == Phase::kPending ? 1 : 0;
  }
  return {{"grants.transfers", transfers_.size()},
          {"grants.deadlines", by_deadline_.size()},
          {"grants.pending", pending},
          {"grants.pending_transfers", in_phase_pending},
          {"grants.unanswered", grants_.size()},
          {"grants.turns", waiting_.size()},
          {"grants.parked", parked_.size()},
          {"grants.queue", queue_.size()},
          {"grants.unacknowledged", unacknowledged_.size()},
          {"grants.declined", declined_.size()},
          {"grants.holding_back", holding_back_.size()}};
}

}  // namespace ferry
