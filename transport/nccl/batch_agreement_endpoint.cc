// SPDX-License-Identifier: Apache-2.0
// BatchAgreementEndpoint: agrees with other devices' endpoints on batches of NCCL operations.
#include "transport/nccl/batch_agreement_endpoint.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry {
namespace {

// A deadline that has passed is looked at again no sooner.
constexpr absl::Duration kShortestGrace = absl::Milliseconds(100);

constexpr absl::string_view kWhyPaused = "it waits for memory, or a program has NCCL work";

// The peer's error, as this device reports it.
absl::Status ReportedBy(const BatchAgreementMessage& message) {
  return absl::Status(message.why.code(),
                      absl::StrCat(Describe(message.from), " says: ", message.why.message()));
}

}  // namespace

absl::Status BatchAgreementEndpoint::Insert(const BatchAgreementTransfer& transfer,
                                            BatchAgreementActions& actions) {
  FERRY_RETURN_IF_ERROR(state_.transfers.Add(transfer, clock_->Now()));
  const absl::Status* const failure = state_.communicators.FailureOf(PeerOf(transfer.key));
  if (failure != nullptr) state_.Finish(transfer.key, *failure, actions);
  return absl::OkStatus();
}

absl::Status BatchAgreementEndpoint::Add(const BatchAgreementTransfer& transfer,
                                         BatchAgreementActions& actions) {
  FERRY_RETURN_IF_ERROR(Insert(transfer, actions));
  const DeviceId peer = PeerOf(transfer.key);
  if (self() < peer) {
    granter_.Schedule(state_, peer);
  } else if (transfer.key.source == self()) {
    granter_.Propose(state_, transfer.key, actions);
  }
  Advance(actions);
  return absl::OkStatus();
}

absl::Status BatchAgreementEndpoint::AddWithGrant(const BatchAgreementTransfer& transfer,
                                                  const BatchAgreementMessage& grant,
                                                  BatchAgreementActions& actions) {
  FERRY_RETURN_IF_ERROR(Insert(transfer, actions));
  // Before its turn is taken, which would make this device busy.
  absl::Status status = OnMessage(grant, actions);
  const DeviceId peer = PeerOf(transfer.key);
  if (self() < peer) granter_.Schedule(state_, peer);
  Advance(actions);
  return status;
}

bool BatchAgreementEndpoint::EndUnlessAgreed(const TransferKey& key, const absl::Status& why,
                                             BatchAgreementActions& actions) {
  const TransferState* const transfer = state_.transfers.Find(key);
  if (transfer == nullptr) return false;
  if (transfer->phase == TransferPhase::kPending) {
    state_.Finish(key, why, actions);
    return true;
  }
  if (transfer->phase != TransferPhase::kGranted || !transfer->end_reason.ok()) return false;
  // The peer rejects it unless it has already answered.
  state_.transfers.SetEndReason(key, why);
  return true;
}

void BatchAgreementEndpoint::Cancel(const TransferKey& key, const absl::Status& why,
                                    BatchAgreementActions& actions) {
  if (EndUnlessAgreed(key, why, actions)) SendCancel(PeerOf(key), {key}, why, actions);
}

void BatchAgreementEndpoint::SendCancel(DeviceId peer, absl::Span<const TransferKey> keys,
                                        const absl::Status& why, BatchAgreementActions& actions) {
  if (state_.communicators.HasFailed(peer)) return;
  while (!keys.empty()) {
    BatchAgreementMessage message =
        NewAgreementMessage(BatchAgreementMessageKind::kCancel, self(), peer, {});
    for (const TransferKey& key : keys.subspan(0, kMaxBatchOperations)) {
      message.operations.push_back({key, 0});
    }
    message.why = why;
    keys.remove_prefix(message.operations.size());
    actions.push_back(SendMessage{std::move(message)});
  }
}

absl::Status BatchAgreementEndpoint::OnMessage(const BatchAgreementMessage& message,
                                               BatchAgreementActions& actions) {
  if (message.to != self() || message.from == self()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(message), " has come to ", Describe(self())));
  }
  for (const BatchAgreementOperation& operation : message.operations) {
    const TransferKey& key = operation.key;
    if ((key.source != self() && key.destination != self()) || key.source == key.destination ||
        PeerOf(key) != message.from) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(message), " speaks of ", Describe(key)));
    }
  }
  // Sent before the device failed.
  if (state_.communicators.HasFailed(message.from)) return absl::OkStatus();
  FERRY_RETURN_IF_ERROR(Dispatch(message, actions));
  Advance(actions);
  return absl::OkStatus();
}

absl::Status BatchAgreementEndpoint::Dispatch(const BatchAgreementMessage& message,
                                              BatchAgreementActions& actions) {
  switch (message.kind) {
    case BatchAgreementMessageKind::kGrant:
      return granter_.OnGrant(state_, message, actions);
    case BatchAgreementMessageKind::kAcknowledge:
      OnAcknowledge(message, actions);
      break;
    case BatchAgreementMessageKind::kDecline:
      granter_.OnDecline(state_, message, actions);
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
      granter_.OnResumed(state_, message);
      break;
  }
  return absl::OkStatus();
}

void BatchAgreementEndpoint::OnAcknowledge(const BatchAgreementMessage& message,
                                           BatchAgreementActions& actions) {
  const std::optional<CommunicatorName> differing =
      granter_.OnAcknowledge(state_, message, actions);
  if (!differing.has_value()) return;
  BreakAll({*differing},
           absl::InternalError(absl::StrCat(Describe(message.from),
                                            " has acknowledged another batch than ",
                                            Describe(self()), " has granted")),
           {}, actions);
}

void BatchAgreementEndpoint::OnCancel(const BatchAgreementMessage& message,
                                      BatchAgreementActions& actions) {
  const absl::Status why = ReportedBy(message);
  for (const BatchAgreementOperation& operation : message.operations) {
    EndUnlessAgreed(operation.key, why, actions);
  }
}

void BatchAgreementEndpoint::OnDone(const BatchAgreementMessage& message,
                                    BatchAgreementActions& actions) {
  const BatchName name{message.communicator, message.granter, message.serial};
  for (const TransferKey& key : state_.queue.Acknowledge(name, message.from)) {
    state_.Finish(key, absl::OkStatus(), actions);
  }
}

void BatchAgreementEndpoint::Completed(const BatchName& name, const absl::Status& status,
                                       BatchAgreementActions& actions) {
  const BatchQueue::Completed completed = state_.queue.Complete(name);
  const DeviceId peer = completed.batch.peer;
  CommunicatorTable& communicators = state_.communicators;
  if (!status.ok() && communicators.IsOpen(name.communicator)) {
    BreakAll({name.communicator},
             absl::Status(status.code(), absl::StrCat("NCCL on ", Describe(self()), " with ",
                                                      Describe(peer), ": ", status.message())),
             {}, actions);
  }

  bool has_received = false;
  std::vector<TransferKey> sent;
  for (const BatchAgreementOperation& operation : completed.batch.operations) {
    if (operation.key.source == self()) {
      sent.push_back(operation.key);
      state_.transfers.SetPhase(operation.key, TransferPhase::kUnacknowledged);
    } else {
      has_received |= status.ok();
      state_.Finish(operation.key,
                    status.ok() ? status : communicators.EndOf(peer, name.communicator), actions);
    }
  }
  if (has_received && !communicators.HasFailed(peer)) {
    BatchAgreementMessage done =
        NewAgreementMessage(BatchAgreementMessageKind::kDone, self(), peer, name.communicator);
    done.serial = name.serial;
    done.granter = name.granter;
    actions.push_back(SendMessage{std::move(done)});
  }
  const bool is_over =
      communicators.HasFailed(peer) || (!communicators.IsOpen(name.communicator) &&
                                        (communicators.HasSettled(name.communicator.id, peer) ||
                                         !state_.options.rules.waits_for_verdict));
  if (completed.is_done_there || is_over) {
    for (const TransferKey& key : sent) {
      state_.Finish(
          key,
          completed.is_done_there ? absl::OkStatus() : communicators.EndOf(peer, name.communicator),
          actions);
    }
  } else if (!sent.empty()) {
    state_.queue.AwaitAcknowledgement(name, peer, std::move(sent));
  }
  Advance(actions);
}

absl::Status BatchAgreementEndpoint::Open(const CommunicatorName& name,
                                          absl::Span<const DeviceId> devices,
                                          BatchAgreementActions& actions) {
  FERRY_RETURN_IF_ERROR(state_.communicators.Open(name, devices));
  granter_.OnOpened(state_, name, devices, actions);
  Advance(actions);
  return absl::OkStatus();
}

void BatchAgreementEndpoint::Break(const CommunicatorName& name, const absl::Status& why,
                                   BatchAgreementActions& actions) {
  BreakAll({name}, why, {}, actions);
  Advance(actions);
}

void BatchAgreementEndpoint::BreakAll(absl::Span<const CommunicatorName> names,
                                      const absl::Status& why,
                                      const CommunicatorTable::BreakCause& cause,
                                      BatchAgreementActions& actions) {
  for (const CommunicatorName& name : state_.communicators.Break(names, why, cause, actions)) {
    DropBatches(name, actions);
    if (!state_.options.rules.waits_for_verdict) FinishUnacknowledged(name, std::nullopt, actions);
  }
}

void BatchAgreementEndpoint::DropBatches(const CommunicatorName& name,
                                         BatchAgreementActions& actions) {
  // The peer ends, or will end, what it has agreed to; for what was only granted it is sent CANCEL.
  for (const BatchGranter::Grant& grant : granter_.OnEnded(name)) {
    const absl::Status end = state_.communicators.EndOf(grant.peer, name);
    std::vector<TransferKey> keys;
    for (const BatchAgreementOperation& operation : grant.operations) {
      keys.push_back(operation.key);
      state_.Finish(operation.key, end, actions);
    }
    SendCancel(grant.peer, keys, end, actions);
  }
  for (const AgreedBatch& batch : state_.queue.RemoveUnlaunched(name)) {
    const absl::Status end = state_.communicators.EndOf(batch.peer, name);
    for (const BatchAgreementOperation& operation : batch.operations) {
      state_.Finish(operation.key, end, actions);
    }
  }
}

void BatchAgreementEndpoint::OnBreak(const BatchAgreementMessage& message,
                                     BatchAgreementActions& actions) {
  const CommunicatorName& name = message.communicator;
  const absl::Status why = ReportedBy(message);
  const std::optional<CommunicatorName> open = state_.communicators.OpenGenerationOf(name.id);
  if (open.has_value() && open->generation <= name.generation) {
    BreakAll({*open}, why, {message.died, message.from}, actions);
  }
  if (state_.communicators.EndGenerationsUpTo(name, why)) DropBatches(name, actions);
}

void BatchAgreementEndpoint::OnSettled(const BatchAgreementMessage& message,
                                       BatchAgreementActions& actions) {
  const CommunicatorName& name = message.communicator;
  if (state_.queue.HasBatchWith(message.from)) state_.communicators.MarkSettled(name, message.from);
  if (!state_.communicators.IsOpen(name)) FinishUnacknowledged(name, message.from, actions);
}

void BatchAgreementEndpoint::FinishUnacknowledged(std::optional<CommunicatorName> name,
                                                  std::optional<DeviceId> peer,
                                                  BatchAgreementActions& actions) {
  for (const auto& [communicator, receiver, keys] : state_.queue.RemoveUnacknowledged(name, peer)) {
    const absl::Status end = state_.communicators.EndOf(receiver, communicator);
    for (const TransferKey& key : keys) state_.Finish(key, end, actions);
  }
}

void BatchAgreementEndpoint::PeerFailed(DeviceId peer, const absl::Status& why,
                                        BatchAgreementActions& actions) {
  if (peer == self() || state_.communicators.HasFailed(peer)) return;
  const absl::Status end =
      absl::UnavailableError(absl::StrCat(Describe(peer), " has failed: ", why.message()));
  state_.communicators.MarkFailed(peer, end);
  granter_.OnPeerFailed(peer);
  BreakAll(state_.communicators.CommunicatorsOf(peer), end, {.died = peer}, actions);
  FinishUnacknowledged(std::nullopt, peer, actions);
  for (const TransferKey& key : state_.transfers.PendingWith(peer)) {
    state_.Finish(key, end, actions);
  }
  Advance(actions);
}

void BatchAgreementEndpoint::Resume(BatchAgreementActions& actions) {
  granter_.Resume(state_, actions);
  Advance(actions);
}

void BatchAgreementEndpoint::Advance(BatchAgreementActions& actions) {
  const auto is_running = [this](uint64_t id) {
    return state_.queue.HasBatch([this, id](const CommunicatorName& name) {
      return name.id == id && !state_.communicators.IsOpen(name);
    });
  };
  state_.communicators.Settle(is_running, actions);
  state_.Launch(actions);
  granter_.TakeTurns(state_, actions);
}

void BatchAgreementEndpoint::Expire(BatchAgreementActions& actions) {
  const absl::Time now = clock_->Now();
  for (const TransferKey& key : state_.transfers.DueAt(now)) {
    // Expiring an earlier transfer may have ended this one too.
    if (state_.transfers.contains(key)) ExpireOne(key, now, actions);
  }
  Advance(actions);
}

void BatchAgreementEndpoint::ExpireOne(const TransferKey& key, absl::Time now,
                                       BatchAgreementActions& actions) {
  const TransferState& transfer = state_.transfers.At(key);
  const absl::Status why = absl::DeadlineExceededError(
      absl::StrCat(Describe(key), " (", transfer.bytes, " bytes): waited ",
                   ShortDuration(now - transfer.since), " for ", WaitsFor(key, transfer)));
  Cancel(key, why, actions);
  if (!state_.transfers.contains(key)) return;
  if (state_.transfers.SetOverdue(key)) {
    const std::optional<BatchName> batch = BatchOf(key);
    if (!batch.has_value()) {
      state_.Finish(key, why, actions);
    } else if (state_.communicators.IsOpen(batch->communicator)) {
      BreakAll({batch->communicator}, why, {}, actions);
    } else if (state_.transfers.At(key).phase == TransferPhase::kUnacknowledged) {
      state_.queue.RemoveUnacknowledged(*batch, key);
      state_.Finish(key, why, actions);
    }
  }
  if (state_.transfers.contains(key)) {
    // It waits for an event from outside: without any grace this would be called all the
    // time.
    state_.transfers.SetDeadline(key, now + std::max(state_.options.abort_grace, kShortestGrace));
  }
}

std::string BatchAgreementEndpoint::WaitsFor(const TransferKey& key,
                                             const TransferState& transfer) const {
  const DeviceId peer = PeerOf(key);
  switch (transfer.phase) {
    case TransferPhase::kPending:
      if (!state_.communicators.UsableWith(peer).has_value()) {
        return absl::StrCat("a communicator with ", Describe(peer), "; none is open on ",
                            Describe(self()));
      }
      if (peer < self()) return absl::StrCat(Describe(peer), " to grant it");
      if (granter_.is_paused()) {
        return absl::StrCat("its turn on ", Describe(self()),
                            ", which agrees on nothing new while ", kWhyPaused);
      }
      if (granter_.IsHoldingBack(peer)) {
        return absl::StrCat(Describe(peer), ", which agrees on nothing new while ", kWhyPaused);
      }
      if (!granter_.IsLocked(state_.options)) {
        return absl::StrCat("its turn on ", Describe(self()), ", where ", state_.queue.size(),
                            " batches are agreed");
      }
      return absl::StrCat("its turn on ", Describe(self()), ", which waits for ",
                          Describe(granter_.grants().front().peer), " to answer a grant");
    case TransferPhase::kGranted:
      return absl::StrCat(Describe(peer), " to answer the grant");
    case TransferPhase::kAgreed:
      return absl::StrCat("its turn in the queue of ", Describe(self()), ", where ",
                          state_.queue.size(), " batches are agreed");
    case TransferPhase::kLaunched:
      return absl::StrCat("NCCL on ", Describe(self()), " to complete it with ", Describe(peer));
    case TransferPhase::kUnacknowledged:
      return absl::StrCat(Describe(peer), " to say whether it has arrived");
  }
  return "";
}

std::optional<BatchName> BatchAgreementEndpoint::BatchOf(const TransferKey& key) const {
  const std::optional<BatchName> granted = granter_.GrantOf(key);
  return granted.has_value() ? granted : state_.queue.BatchOf(key);
}

std::vector<std::string> BatchAgreementEndpoint::Pending() const {
  const absl::Time now = clock_->Now();
  std::vector<std::string> lines;
  for (const auto& [key, transfer] : state_.transfers.transfers()) {
    lines.push_back(absl::StrCat(Describe(key), ": ", ShortDuration(now - transfer.since), ", ",
                                 WaitsFor(key, transfer)));
  }
  return lines;
}

TableSizes BatchAgreementEndpoint::InnerTableSizes() const {
  return {{"grants.transfers", transfer_count()},
          {"grants.deadlines", state_.transfers.deadline_count()},
          {"grants.pending", state_.transfers.queued_count()},
          {"grants.pending_transfers", state_.transfers.pending_count()},
          {"grants.unanswered", granter_.grants().size()},
          {"grants.turns", granter_.turn_count()},
          {"grants.parked", granter_.parked_count()},
          {"grants.queue", state_.queue.size()},
          {"grants.unacknowledged", state_.queue.unacknowledged_count()},
          {"grants.declined", granter_.declined_count()},
          {"grants.holding_back", granter_.holding_back_count()}};
}

}  // namespace ferry
