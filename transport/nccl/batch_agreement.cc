// SPDX-License-Identifier: Apache-2.0
// The agreement protocol: granting a batch, running it, and acknowledging its results.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/nccl/batch_agreement_endpoint.h"

namespace ferry {

BatchAgreementMessage BatchAgreementEndpoint::Message(BatchAgreementMessageKind kind, DeviceId to,
                                                      const CommunicatorName& name) const {
  BatchAgreementMessage message;
  message.kind = kind;
  message.from = self_;
  message.to = to;
  message.communicator = name;
  return message;
}

const BatchAgreementEndpoint::Communicator* BatchAgreementEndpoint::Usable(
    DeviceId peer, CommunicatorName& name) const {
  // Prefer the smallest: a communicator of the pair itself over one of many devices.
  const Communicator* best = nullptr;
  for (const auto& [id, communicator] : communicators_) {
    if (communicator.state != CommunicatorState::kOpen) continue;
    const std::vector<DeviceId>& devices = communicator.devices;
    if (std::find(devices.begin(), devices.end(), peer) == devices.end()) continue;
    if (best != nullptr && best->devices.size() <= devices.size()) continue;
    best = &communicator;
    name = {id, communicator.generation};
  }
  return best;
}

void BatchAgreementEndpoint::Schedule(DeviceId peer) {
  CommunicatorName name;
  if (!pending_.contains(peer) || holding_back_.contains(peer)) return;
  if (Usable(peer, name) == nullptr) return;
  const bool is_waiting = std::any_of(waiting_.begin(), waiting_.end(), [peer](const Turn& turn) {
    return turn.peer == peer && !turn.grant.has_value();
  });
  if (!is_waiting) waiting_.push_back({peer, std::nullopt});
}

void BatchAgreementEndpoint::SendGrant(DeviceId peer, absl::Span<const TransferKey> keys,
                                       const CommunicatorName& name, GrantActions& actions) {
  Grant grant{{name, self_, ++serial_}, peer, {}};
  for (const TransferKey& key : keys) {
    Transfer& transfer = transfers_.find(key)->second;
    Unqueue(key, transfer);
    transfer.phase = Phase::kGranted;
    grant.operations.push_back({key, transfer.bytes});
  }
  BatchAgreementMessage message = Message(BatchAgreementMessageKind::kGrant, peer, name);
  message.serial = serial_;
  message.operations = grant.operations;
  actions.push_back(SendMessage{std::move(message)});
  if (!options_.rules.acknowledges_before_launch) Append(grant.name, peer, grant.operations);
  grants_.push_back(std::move(grant));
}

void BatchAgreementEndpoint::Propose(const TransferKey& key, GrantActions& actions) {
  const auto found = transfers_.find(key);
  CommunicatorName name;
  if (found == transfers_.end() || !MayAgree() || !waiting_.empty() ||
      Usable(PeerOf(key), name) == nullptr) {
    return;
  }
  SendGrant(PeerOf(key), {key}, name, actions);
}

void BatchAgreementEndpoint::GrantPending(DeviceId peer, GrantActions& actions) {
  const auto row = pending_.find(peer);
  CommunicatorName name;
  if (row == pending_.end() || holding_back_.contains(peer)) return;
  if (Usable(peer, name) == nullptr) return;
  const size_t max_operations = std::min(options_.max_batch_operations, kMaxBatchOperations);
  std::vector<TransferKey> keys;
  uint64_t bytes = 0;
  for (const auto& [order, key] : row->second) {
    const uint64_t more = transfers_.find(key)->second.bytes;
    if (keys.size() == max_operations) break;
    if (!keys.empty() &&
        more > options_.max_batch_bytes - std::min(bytes, options_.max_batch_bytes))
      break;
    keys.push_back(key);
    bytes += more;
  }
  SendGrant(peer, keys, name, actions);
  // The remaining transfers queue behind everyone else's.
  Schedule(peer);
}

void BatchAgreementEndpoint::OnGrant(const BatchAgreementMessage& grant, GrantActions& actions) {
  CommunicatorName name = grant.communicator;
  Communicator& communicator = communicators_[name.id];
  if (!options_.rules.checks_generation) {
    name.generation = std::max(name.generation, communicator.generation);
  }
  // The granter has ended that communicator too, or will be told to.
  if (name.generation < communicator.lowest) return;
  // A device has one grant outstanding at a time, so it has given up any earlier one.
  const auto is_older = [&grant](const Turn& turn) {
    return turn.grant.has_value() && turn.peer == grant.from;
  };
  if (options_.rules.holds_lock_until_answer) {
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_older), waiting_.end());
  }
  parked_.erase(std::remove_if(parked_.begin(), parked_.end(),
                               [&grant](const BatchAgreementMessage& other) {
                                 return other.from == grant.from;
                               }),
                parked_.end());

  const bool may_wait = grant.from < self_ || !options_.rules.locks_in_id_order;
  const bool declines = is_paused_ && options_.rules.declines_while_paused;
  if (IsOpen(name)) {
    const std::vector<DeviceId>& devices = communicator.devices;
    if (std::find(devices.begin(), devices.end(), grant.from) == devices.end()) return;
    if (MayAgree() && waiting_.empty()) return Respond(grant, actions);
    if (may_wait && !declines) return waiting_.push_back({grant.from, grant});
  } else if (may_wait && !declines) {
    return parked_.push_back(grant);
  }
  Decline(grant, actions);
}

void BatchAgreementEndpoint::Decline(const BatchAgreementMessage& grant, GrantActions& actions) {
  BatchAgreementMessage decline =
      Message(BatchAgreementMessageKind::kDecline, grant.from, grant.communicator);
  decline.serial = grant.serial;
  actions.push_back(SendMessage{std::move(decline)});
  if (is_paused_ && grant.from < self_) declined_.insert(grant.from);
}

void BatchAgreementEndpoint::Respond(const BatchAgreementMessage& grant, GrantActions& actions) {
  BatchAgreementMessage answer =
      Message(BatchAgreementMessageKind::kAcknowledge, grant.from, grant.communicator);
  answer.serial = grant.serial;
  std::vector<BatchAgreementOperation> accepted;
  for (size_t i = 0; i < grant.operations.size(); ++i) {
    const BatchAgreementOperation& operation = grant.operations[i];
    const auto found = transfers_.find(operation.key);
    if (found == transfers_.end() || found->second.phase != Phase::kPending) {
      answer.refusals.push_back({absl::StatusCode::kNotFound, 0});
    } else if (const uint64_t bytes = found->second.bytes; bytes != operation.bytes) {
      answer.refusals.push_back({absl::StatusCode::kInvalidArgument, bytes});
      Finish(operation.key,
             absl::InvalidArgumentError(
                 absl::StrCat(Describe(operation.key), " is ", bytes, " bytes on ", Describe(self_),
                              " and ", operation.bytes, " on ", Describe(grant.from))),
             actions);
    } else {
      Unqueue(operation.key, found->second);
      found->second.phase = Phase::kAgreed;
      answer.accepted |= uint32_t{1} << i;
      accepted.push_back(operation);
    }
  }
  answer.digest = DigestOf(accepted);
  actions.push_back(SendMessage{std::move(answer)});
  if (accepted.empty()) return;
  CommunicatorName name = grant.communicator;
  if (!options_.rules.checks_generation) {
    name.generation = std::max(name.generation, communicators_[name.id].generation);
  }
  Append({name, grant.from, grant.serial}, grant.from, std::move(accepted));
}

std::vector<BatchAgreementEndpoint::Grant>::iterator BatchAgreementEndpoint::FindGrant(
    const BatchAgreementMessage& answer) {
  return std::find_if(grants_.begin(), grants_.end(), [&](const Grant& grant) {
    return grant.peer == answer.from && grant.name.serial == answer.serial &&
           (grant.name.communicator == answer.communicator || !options_.rules.checks_generation);
  });
}

void BatchAgreementEndpoint::OnAcknowledge(const BatchAgreementMessage& message,
                                           GrantActions& actions) {
  const auto found = FindGrant(message);
  // From an earlier generation.
  if (found == grants_.end()) return;
  std::vector<BatchAgreementOperation> accepted;
  for (size_t i = 0; i < found->operations.size(); ++i) {
    if ((message.accepted >> i & 1) != 0) accepted.push_back(found->operations[i]);
  }
  const size_t refused_count = found->operations.size() - accepted.size();
  if (static_cast<size_t>(std::popcount(message.accepted)) != accepted.size() ||
      message.refusals.size() != refused_count || message.digest != DigestOf(accepted)) {
    return BreakAll({found->name.communicator},
                    absl::InternalError(absl::StrCat(Describe(message.from),
                                                     " has acknowledged another batch than ",
                                                     Describe(self_), " has granted")),
                    {}, actions);
  }
  const Grant grant = std::move(*found);
  grants_.erase(found);
  size_t refusal_index = 0;
  for (size_t i = 0; i < grant.operations.size(); ++i) {
    const BatchAgreementOperation& operation = grant.operations[i];
    Transfer& transfer = transfers_.find(operation.key)->second;
    if ((message.accepted >> i & 1) != 0) continue;
    const BatchAgreementRefusal& refusal = message.refusals[refusal_index++];
    absl::Status why = transfer.end_reason;
    if (refusal.code == absl::StatusCode::kInvalidArgument) {
      why = absl::InvalidArgumentError(
          absl::StrCat(Describe(operation.key), " is ", operation.bytes, " bytes on ",
                       Describe(self_), " and ", refusal.bytes, " on ", Describe(grant.peer)));
    } else if (why.ok()) {
      why = absl::NotFoundError(absl::StrCat(Describe(operation.key), ": ", Describe(grant.peer),
                                             " does not want it any more"));
    }
    Finish(operation.key, std::move(why), actions);
  }
  if (accepted.empty() || !options_.rules.acknowledges_before_launch) return;
  Append(grant.name, grant.peer, std::move(accepted));
}

void BatchAgreementEndpoint::OnDecline(const BatchAgreementMessage& message,
                                       GrantActions& actions) {
  const auto found = FindGrant(message);
  if (found == grants_.end()) return;
  const Grant grant = std::move(*found);
  grants_.erase(found);
  for (const BatchAgreementOperation& operation : grant.operations) {
    Transfer& transfer = transfers_.find(operation.key)->second;
    const absl::Status end_reason = std::exchange(transfer.end_reason, absl::OkStatus());
    Requeue(operation.key, transfer);
    // The peer has already ended it.
    if (!end_reason.ok()) Finish(operation.key, end_reason, actions);
  }
  if (self_ < grant.peer) holding_back_.insert(grant.peer);
}

void BatchAgreementEndpoint::OnResumed(const BatchAgreementMessage& message) {
  if (holding_back_.erase(message.from) > 0) Schedule(message.from);
}

void BatchAgreementEndpoint::Append(const BatchName& name, DeviceId peer,
                                    std::vector<BatchAgreementOperation> operations) {
  for (const BatchAgreementOperation& operation : operations) {
    transfers_.find(operation.key)->second.phase = Phase::kAgreed;
  }
  Agreed agreed;
  agreed.batch.name = name;
  agreed.batch.peer = peer;
  agreed.batch.is_first = communicators_[name.communicator.id].used.insert(peer).second;
  agreed.batch.operations = std::move(operations);
  queue_.push_back(std::move(agreed));
}

void BatchAgreementEndpoint::Launch(GrantActions& actions) {
  size_t launched = 0;
  for (Agreed& agreed : queue_) {
    if (++launched > options_.max_launched) return;
    if (std::exchange(agreed.is_launched, true)) continue;
    for (const BatchAgreementOperation& operation : agreed.batch.operations) {
      transfers_.find(operation.key)->second.phase = Phase::kLaunched;
    }
    actions.push_back(LaunchBatch{agreed.batch});
  }
}

void BatchAgreementEndpoint::Advance(GrantActions& actions) {
  Settle(actions);
  Launch(actions);
  while (MayAgree() && !waiting_.empty()) {
    const Turn turn = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    if (turn.grant.has_value()) {
      Respond(*turn.grant, actions);
    } else {
      GrantPending(turn.peer, actions);
    }
    Launch(actions);
  }
}

void BatchAgreementEndpoint::Pause(GrantActions& actions) {
  if (std::exchange(is_paused_, true) || !options_.rules.declines_while_paused) return;
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

void BatchAgreementEndpoint::Resume(GrantActions& actions) {
  is_paused_ = false;
  for (const DeviceId peer : std::exchange(declined_, {})) {
    actions.push_back(SendMessage{Message(BatchAgreementMessageKind::kResumed, peer, {})});
  }
  Advance(actions);
}

void BatchAgreementEndpoint::Completed(const BatchName& name, const absl::Status& status,
                                       GrantActions& actions) {
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&name](const Agreed& agreed) {
    return agreed.is_launched && agreed.batch.name == name;
  });
  FERRY_CHECK(found != queue_.end());
  const Agreed agreed = std::move(*found);
  queue_.erase(found);
  const DeviceId peer = agreed.batch.peer;
  if (!status.ok() && IsOpen(name.communicator)) {
    BreakAll({name.communicator},
             absl::Status(status.code(), absl::StrCat("NCCL on ", Describe(self_), " with ",
                                                      Describe(peer), ": ", status.message())),
             {}, actions);
  }

  bool has_received = false;
  std::vector<TransferKey> sent;
  for (const BatchAgreementOperation& operation : agreed.batch.operations) {
    if (operation.key.source == self_) {
      sent.push_back(operation.key);
      transfers_.find(operation.key)->second.phase = Phase::kUnacknowledged;
    } else {
      has_received |= status.ok();
      Finish(operation.key, status.ok() ? status : EndOf(peer, name.communicator), actions);
    }
  }
  if (has_received && !dead_.contains(peer)) {
    BatchAgreementMessage done = Message(BatchAgreementMessageKind::kDone, peer, name.communicator);
    done.serial = name.serial;
    done.granter = name.granter;
    actions.push_back(SendMessage{std::move(done)});
  }
  const Communicator& communicator = communicators_[name.communicator.id];
  const bool is_over = dead_.contains(peer) ||
                       (!IsOpen(name.communicator) &&
                        (communicator.settled.contains(peer) || !options_.rules.waits_for_verdict));
  if (agreed.is_done_there || is_over) {
    for (const TransferKey& key : sent) {
      Finish(key, agreed.is_done_there ? absl::OkStatus() : EndOf(peer, name.communicator),
             actions);
    }
  } else if (!sent.empty()) {
    unacknowledged_.emplace(name, Unacknowledged{peer, std::move(sent)});
  }
  Advance(actions);
}

void BatchAgreementEndpoint::OnDone(const BatchAgreementMessage& message, GrantActions& actions) {
  const BatchName name{message.communicator, message.granter, message.serial};
  const auto sent = unacknowledged_.find(name);
  if (sent != unacknowledged_.end() && sent->second.peer == message.from) {
    const std::vector<TransferKey> keys = std::move(sent->second.keys);
    unacknowledged_.erase(sent);
    for (const TransferKey& key : keys) Finish(key, absl::OkStatus(), actions);
    return;
  }
  for (Agreed& agreed : queue_) {
    if (agreed.is_launched && agreed.batch.name == name && agreed.batch.peer == message.from) {
      agreed.is_done_there = true;
    }
  }
}

}  // namespace ferry
