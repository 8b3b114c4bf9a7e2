// SPDX-License-Identifier: Apache-2.0
// BatchGranter: grants batches to peers, and answers theirs, under one device's lock.
#include "transport/nccl/batch_granter.h"

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

// The transfer's two devices were given tensors of different sizes.
absl::Status SizesDiffer(const TransferKey& key, DeviceId self, uint64_t bytes, DeviceId peer,
                         uint64_t peer_bytes) {
  return absl::InvalidArgumentError(absl::StrCat(Describe(key), " is ", bytes, " bytes on ",
                                                 Describe(self), " and ", peer_bytes, " on ",
                                                 Describe(peer)));
}

}  // namespace

void BatchGranter::Schedule(const BatchAgreementState& state, DeviceId peer) {
  if (!state.transfers.HasPending(peer) || holding_back_.contains(peer)) return;
  if (!state.communicators.UsableWith(peer).has_value()) return;
  const bool is_waiting = std::any_of(waiting_.begin(), waiting_.end(), [peer](const Turn& turn) {
    return turn.peer == peer && !turn.grant.has_value();
  });
  if (!is_waiting) waiting_.push_back({peer, std::nullopt});
}

void BatchGranter::SendGrant(BatchAgreementState& state, DeviceId peer,
                             absl::Span<const TransferKey> keys, const CommunicatorName& name,
                             BatchAgreementActions& actions) {
  Grant grant{{name, state.self, ++serial_}, peer, {}};
  for (const TransferKey& key : keys) {
    const TransferState& transfer = state.transfers.SetPhase(key, TransferPhase::kGranted);
    grant.operations.push_back({key, transfer.bytes});
  }
  BatchAgreementMessage message =
      NewAgreementMessage(BatchAgreementMessageKind::kGrant, state.self, peer, name);
  message.serial = serial_;
  message.operations = grant.operations;
  actions.push_back(SendMessage{std::move(message)});
  if (!state.options.rules.acknowledges_before_launch) {
    state.Append(grant.name, peer, grant.operations);
  }
  grants_.push_back(std::move(grant));
}

void BatchGranter::Propose(BatchAgreementState& state, const TransferKey& key,
                           BatchAgreementActions& actions) {
  if (!state.transfers.contains(key) || !MayAgree(state) || !waiting_.empty()) return;
  const DeviceId peer = state.transfers.PeerOf(key);
  const std::optional<CommunicatorName> name = state.communicators.UsableWith(peer);
  if (name.has_value()) SendGrant(state, peer, {key}, *name, actions);
}

void BatchGranter::GrantPending(BatchAgreementState& state, DeviceId peer,
                                BatchAgreementActions& actions) {
  if (!state.transfers.HasPending(peer) || holding_back_.contains(peer)) return;
  const std::optional<CommunicatorName> name = state.communicators.UsableWith(peer);
  if (!name.has_value()) return;
  const std::vector<TransferKey> keys = state.transfers.OldestPending(
      peer, std::min(state.options.max_batch_operations, kMaxBatchOperations),
      state.options.max_batch_bytes);
  SendGrant(state, peer, keys, *name, actions);
  // The remaining transfers queue behind everyone else's.
  Schedule(state, peer);
}

void BatchGranter::TakeTurns(BatchAgreementState& state, BatchAgreementActions& actions) {
  while (MayAgree(state) && !waiting_.empty()) {
    const Turn turn = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    if (turn.grant.has_value()) {
      Respond(state, *turn.grant, actions);
    } else {
      GrantPending(state, turn.peer, actions);
    }
    state.Launch(actions);
  }
}

CommunicatorName BatchGranter::GenerationOf(const BatchAgreementState& state,
                                            const BatchAgreementMessage& grant) {
  CommunicatorName name = grant.communicator;
  if (!state.options.rules.checks_generation) {
    name.generation = std::max(name.generation, state.communicators.LatestGenerationOf(name.id));
  }
  return name;
}

absl::Status BatchGranter::OnGrant(BatchAgreementState& state, const BatchAgreementMessage& grant,
                                   BatchAgreementActions& actions) {
  if (grant.serial <= std::exchange(last_serials_[grant.from], grant.serial)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(grant), " has come a second time, or too late"));
  }
  Consider(state, grant, actions);
  return absl::OkStatus();
}

void BatchGranter::Consider(BatchAgreementState& state, const BatchAgreementMessage& grant,
                            BatchAgreementActions& actions) {
  const CommunicatorName name = GenerationOf(state, grant);
  // The granter has ended that communicator too, or will be told to.
  if (state.communicators.IsOver(name)) return;
  // A device has one grant outstanding at a time, so it has given up any earlier one.
  const auto is_older = [&grant](const Turn& turn) {
    return turn.grant.has_value() && turn.peer == grant.from;
  };
  if (state.options.rules.holds_lock_until_answer) {
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_older), waiting_.end());
  }
  parked_.erase(std::remove_if(parked_.begin(), parked_.end(),
                               [&grant](const BatchAgreementMessage& other) {
                                 return other.from == grant.from;
                               }),
                parked_.end());

  const bool may_wait = grant.from < state.self || !state.options.rules.locks_in_id_order;
  const bool declines = is_paused_ && state.options.rules.declines_while_paused;
  if (state.communicators.IsOpen(name)) {
    if (!state.communicators.Includes(name.id, grant.from)) return;
    if (MayAgree(state) && waiting_.empty()) return Respond(state, grant, actions);
    if (may_wait && !declines) return waiting_.push_back({grant.from, grant});
  } else if (may_wait && !declines) {
    return parked_.push_back(grant);
  }
  Decline(grant, actions);
}

void BatchGranter::Decline(const BatchAgreementMessage& grant, BatchAgreementActions& actions) {
  BatchAgreementMessage decline = NewAgreementMessage(BatchAgreementMessageKind::kDecline, grant.to,
                                                      grant.from, grant.communicator);
  decline.serial = grant.serial;
  actions.push_back(SendMessage{std::move(decline)});
  if (is_paused_ && grant.from < grant.to) declined_.insert(grant.from);
}

void BatchGranter::Respond(BatchAgreementState& state, const BatchAgreementMessage& grant,
                           BatchAgreementActions& actions) {
  BatchAgreementMessage answer = NewAgreementMessage(BatchAgreementMessageKind::kAcknowledge,
                                                     state.self, grant.from, grant.communicator);
  answer.serial = grant.serial;
  std::vector<BatchAgreementOperation> accepted;
  for (size_t i = 0; i < grant.operations.size(); ++i) {
    const BatchAgreementOperation& operation = grant.operations[i];
    const TransferState* const transfer = state.transfers.Find(operation.key);
    if (transfer == nullptr || transfer->phase != TransferPhase::kPending) {
      answer.refusals.push_back({absl::StatusCode::kNotFound, 0});
    } else if (const uint64_t bytes = transfer->bytes; bytes != operation.bytes) {
      answer.refusals.push_back({absl::StatusCode::kInvalidArgument, bytes});
      state.Finish(operation.key,
                   SizesDiffer(operation.key, state.self, bytes, grant.from, operation.bytes),
                   actions);
    } else {
      state.transfers.SetPhase(operation.key, TransferPhase::kAgreed);
      answer.accepted |= uint32_t{1} << i;
      accepted.push_back(operation);
    }
  }
  answer.digest = DigestOf(accepted);
  actions.push_back(SendMessage{std::move(answer)});
  if (accepted.empty()) return;
  state.Append({GenerationOf(state, grant), grant.from, grant.serial}, grant.from,
               std::move(accepted));
}

std::vector<BatchGranter::Grant>::iterator BatchGranter::FindGrant(
    const BatchAgreementState& state, const BatchAgreementMessage& answer) {
  return std::find_if(grants_.begin(), grants_.end(), [&](const Grant& grant) {
    return grant.peer == answer.from && grant.name.serial == answer.serial &&
           (grant.name.communicator == answer.communicator ||
            !state.options.rules.checks_generation);
  });
}

std::optional<CommunicatorName> BatchGranter::OnAcknowledge(BatchAgreementState& state,
                                                            const BatchAgreementMessage& message,
                                                            BatchAgreementActions& actions) {
  const auto found = FindGrant(state, message);
  // From an earlier generation.
  if (found == grants_.end()) return std::nullopt;
  std::vector<BatchAgreementOperation> accepted;
  for (size_t i = 0; i < found->operations.size(); ++i) {
    if ((message.accepted >> i & 1) != 0) accepted.push_back(found->operations[i]);
  }
  const size_t refused_count = found->operations.size() - accepted.size();
  if (static_cast<size_t>(std::popcount(message.accepted)) != accepted.size() ||
      message.refusals.size() != refused_count || message.digest != DigestOf(accepted)) {
    return found->name.communicator;
  }
  const Grant grant = std::move(*found);
  grants_.erase(found);
  size_t refusal_index = 0;
  for (size_t i = 0; i < grant.operations.size(); ++i) {
    const BatchAgreementOperation& operation = grant.operations[i];
    const TransferState& transfer = state.transfers.At(operation.key);
    if ((message.accepted >> i & 1) != 0) continue;
    const BatchAgreementRefusal& refusal = message.refusals[refusal_index++];
    absl::Status why = transfer.end_reason;
    if (refusal.code == absl::StatusCode::kInvalidArgument) {
      why = SizesDiffer(operation.key, state.self, operation.bytes, grant.peer, refusal.bytes);
    } else if (why.ok()) {
      why = absl::NotFoundError(absl::StrCat(Describe(operation.key), ": ", Describe(grant.peer),
                                             " does not want it any more"));
    }
    state.Finish(operation.key, std::move(why), actions);
  }
  if (!accepted.empty() && state.options.rules.acknowledges_before_launch) {
    state.Append(grant.name, grant.peer, std::move(accepted));
  }
  return std::nullopt;
}

void BatchGranter::OnDecline(BatchAgreementState& state, const BatchAgreementMessage& message,
                             BatchAgreementActions& actions) {
  const auto found = FindGrant(state, message);
  if (found == grants_.end()) return;
  const Grant grant = std::move(*found);
  grants_.erase(found);
  for (const BatchAgreementOperation& operation : grant.operations) {
    const absl::Status end_reason = state.transfers.TakeEndReason(operation.key);
    state.transfers.SetPhase(operation.key, TransferPhase::kPending);
    // The peer has already ended it.
    if (!end_reason.ok()) state.Finish(operation.key, end_reason, actions);
  }
  if (state.self < grant.peer) holding_back_.insert(grant.peer);
}

void BatchGranter::OnResumed(const BatchAgreementState& state,
                             const BatchAgreementMessage& message) {
  if (holding_back_.erase(message.from) > 0) Schedule(state, message.from);
}

void BatchGranter::Pause(const BatchAgreementState& state, BatchAgreementActions& actions) {
  if (std::exchange(is_paused_, true) || !state.options.rules.declines_while_paused) return;
  std::vector<Turn> own;
  for (Turn& turn : std::exchange(waiting_, {})) {
    if (turn.grant.has_value()) {
      Decline(*turn.grant, actions);
    } else {
      own.push_back(std::move(turn));
    }
  }
  waiting_ = std::move(own);
  for (const BatchAgreementMessage& grant : std::exchange(parked_, {})) Decline(grant, actions);
}

void BatchGranter::Resume(const BatchAgreementState& state, BatchAgreementActions& actions) {
  is_paused_ = false;
  for (const DeviceId peer : std::exchange(declined_, {})) {
    actions.push_back(SendMessage{
        NewAgreementMessage(BatchAgreementMessageKind::kResumed, state.self, peer, {})});
  }
}

void BatchGranter::OnOpened(BatchAgreementState& state, const CommunicatorName& name,
                            absl::Span<const DeviceId> devices, BatchAgreementActions& actions) {
  std::vector<BatchAgreementMessage> parked;
  for (BatchAgreementMessage& grant : std::exchange(parked_, {})) {
    const bool is_of_it = grant.communicator == name;
    if (is_of_it || grant.communicator.id != name.id) {
      (is_of_it ? parked : parked_).push_back(std::move(grant));
    }
  }
  for (const BatchAgreementMessage& grant : parked) Consider(state, grant, actions);
  for (const DeviceId peer : devices) {
    if (state.self < peer) Schedule(state, peer);
  }
}

std::vector<BatchGranter::Grant> BatchGranter::OnEnded(const CommunicatorName& name) {
  std::vector<Grant> ended;
  for (auto grant = grants_.begin(); grant != grants_.end();) {
    if (grant->name.communicator != name) {
      ++grant;
      continue;
    }
    ended.push_back(std::move(*grant));
    grant = grants_.erase(grant);
  }
  const auto is_of_it = [&name](const BatchAgreementMessage& grant) {
    return grant.communicator.id == name.id && grant.communicator.generation <= name.generation;
  };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                [&](const Turn& turn) {
                                  return turn.grant.has_value() && is_of_it(*turn.grant);
                                }),
                 waiting_.end());
  parked_.erase(std::remove_if(parked_.begin(), parked_.end(), is_of_it), parked_.end());
  return ended;
}

void BatchGranter::OnPeerFailed(DeviceId peer) {
  holding_back_.erase(peer);
  declined_.erase(peer);
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                [peer](const Turn& turn) { return turn.peer == peer; }),
                 waiting_.end());
  parked_.erase(
      std::remove_if(parked_.begin(), parked_.end(),
                     [peer](const BatchAgreementMessage& grant) { return grant.from == peer; }),
      parked_.end());
}

void BatchGranter::OnPeerJoined(DeviceId peer) {
  last_serials_.erase(peer);
  holding_back_.erase(peer);
  declined_.erase(peer);
}

std::optional<BatchName> BatchGranter::GrantOf(const TransferKey& key) const {
  for (const Grant& grant : grants_) {
    for (const BatchAgreementOperation& operation : grant.operations) {
      if (operation.key == key) return grant.name;
    }
  }
  return std::nullopt;
}

}  // namespace ferry
