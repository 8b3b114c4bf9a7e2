// SPDX-License-Identifier: Apache-2.0
// How communicators of a batch agreement endpoint open, break and are freed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "transport/nccl/batch_agreement_endpoint.h"

namespace ferry {

bool BatchAgreementEndpoint::IsOpen(const CommunicatorName& name) const {
  const auto found = communicators_.find(name.id);
  return found != communicators_.end() && found->second.state == CommunicatorState::kOpen &&
         found->second.generation == name.generation;
}

absl::Status BatchAgreementEndpoint::EndOf(DeviceId peer, const CommunicatorName& name) const {
  const auto dead = dead_.find(peer);
  if (dead != dead_.end()) return dead->second;
  return absl::AbortedError(absl::StrCat(
      Describe(name), " was aborted: ", communicators_.find(name.id)->second.why.message()));
}

absl::Status BatchAgreementEndpoint::Open(const CommunicatorName& name,
                                          absl::Span<const DeviceId> devices,
                                          GrantActions& actions) {
  std::vector<DeviceId> sorted(devices.begin(), devices.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted.size() < 2 || !std::binary_search(sorted.begin(), sorted.end(), self_) ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() || sorted[0] < DeviceId(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(name), " is not one of ", Describe(self_), " and others"));
  }
  Communicator& communicator = communicators_[name.id];
  if (name.generation < communicator.lowest) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(name), " is over; the next generation is ", communicator.lowest, ": ",
                     communicator.why.message()));
  }
  if (communicator.state != CommunicatorState::kAbsent) {
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(name), ": generation ", communicator.generation, " of it is not freed yet"));
  }
  Communicator opened;
  opened.state = CommunicatorState::kOpen;
  opened.generation = name.generation;
  opened.lowest = name.generation;
  opened.devices = std::move(sorted);
  communicator = std::move(opened);
  for (const DeviceId peer : devices) dead_.erase(peer);

  std::vector<BatchAgreementMessage> parked;
  for (BatchAgreementMessage& grant : std::exchange(parked_, {})) {
    const bool is_of_it = grant.communicator == name;
    if (is_of_it || grant.communicator.id != name.id) {
      (is_of_it ? parked : parked_).push_back(std::move(grant));
    }
  }
  for (const BatchAgreementMessage& grant : parked) OnGrant(grant, actions);
  for (const DeviceId peer : devices) {
    if (self_ < peer) Schedule(peer);
  }
  Advance(actions);
  return absl::OkStatus();
}

void BatchAgreementEndpoint::Break(const CommunicatorName& name, const absl::Status& why,
                                   GrantActions& actions) {
  BreakAll({name}, why, {}, actions);
  Advance(actions);
}

void BatchAgreementEndpoint::BreakAll(std::vector<CommunicatorName> names, const absl::Status& why,
                                      const BreakCause& cause, GrantActions& actions) {
  names.erase(std::remove_if(names.begin(), names.end(),
                             [this](const CommunicatorName& name) { return !IsOpen(name); }),
              names.end());
  for (const CommunicatorName& name : names) {
    Communicator& communicator = communicators_.find(name.id)->second;
    communicator.state = CommunicatorState::kBroken;
    communicator.lowest = name.generation + 1;
    communicator.why = why;
    actions.push_back(FlagCommunicator{name, why, cause.died});
  }
  for (const CommunicatorName& name : names) actions.push_back(AbortCommunicator{name});
  for (const CommunicatorName& name : names) {
    for (const DeviceId device : communicators_.find(name.id)->second.devices) {
      if (device == self_ || device == cause.told_by || dead_.contains(device)) continue;
      BatchAgreementMessage message = Message(BatchAgreementMessageKind::kBreak, device, name);
      message.died = cause.died;
      message.why = why;
      actions.push_back(SendMessage{std::move(message)});
    }
  }
  for (const CommunicatorName& name : names) {
    DropBatches(name, actions);
    if (!options_.rules.waits_for_verdict) FinishUnacknowledged(name, std::nullopt, actions);
  }
}

void BatchAgreementEndpoint::DropBatches(const CommunicatorName& name, GrantActions& actions) {
  // The peer ends, or will end, what it has agreed to; for what was only granted it is sent CANCEL.
  std::vector<BatchAgreementOperation> dropped;
  for (auto grant = grants_.begin(); grant != grants_.end();) {
    if (grant->name.communicator != name) {
      ++grant;
      continue;
    }
    std::vector<TransferKey> keys;
    for (const BatchAgreementOperation& operation : grant->operations)
      keys.push_back(operation.key);
    const DeviceId peer = grant->peer;
    grant = grants_.erase(grant);
    for (const TransferKey& key : keys) Finish(key, EndOf(peer, name), actions);
    SendCancel(peer, keys, EndOf(peer, name), actions);
  }
  for (auto agreed = queue_.begin(); agreed != queue_.end();) {
    if (agreed->is_launched || agreed->batch.name.communicator != name) {
      ++agreed;
      continue;
    }
    for (const BatchAgreementOperation& operation : agreed->batch.operations) {
      Finish(operation.key, EndOf(agreed->batch.peer, name), actions);
    }
    agreed = queue_.erase(agreed);
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
}

void BatchAgreementEndpoint::OnBreak(const BatchAgreementMessage& message, GrantActions& actions) {
  const CommunicatorName& name = message.communicator;
  const absl::Status why(message.why.code(),
                         absl::StrCat(Describe(message.from), " says: ", message.why.message()));
  Communicator& communicator = communicators_[name.id];
  if (communicator.state == CommunicatorState::kOpen &&
      communicator.generation <= name.generation) {
    BreakAll({{name.id, communicator.generation}}, why, {message.died, message.from}, actions);
  }
  if (communicator.lowest <= name.generation) {
    communicator.lowest = name.generation + 1;
    communicator.why = why;
    DropBatches(name, actions);
  }
}

bool BatchAgreementEndpoint::HasBatchWith(DeviceId peer) const {
  return std::any_of(queue_.begin(), queue_.end(),
                     [peer](const Agreed& agreed) { return agreed.batch.peer == peer; });
}

void BatchAgreementEndpoint::OnSettled(const BatchAgreementMessage& message,
                                       GrantActions& actions) {
  Communicator& communicator = communicators_[message.communicator.id];
  if (communicator.state == CommunicatorState::kBroken &&
      communicator.generation == message.communicator.generation && HasBatchWith(message.from)) {
    communicator.settled.insert(message.from);
  }
  if (!IsOpen(message.communicator)) {
    FinishUnacknowledged(message.communicator, message.from, actions);
  }
}

void BatchAgreementEndpoint::FinishUnacknowledged(std::optional<CommunicatorName> name,
                                                  std::optional<DeviceId> peer,
                                                  GrantActions& actions) {
  for (auto sent = unacknowledged_.begin(); sent != unacknowledged_.end();) {
    const CommunicatorName communicator = sent->first.communicator;
    if (name.value_or(communicator) != communicator ||
        peer.value_or(sent->second.peer) != sent->second.peer) {
      ++sent;
      continue;
    }
    const Unacknowledged over = std::move(sent->second);
    sent = unacknowledged_.erase(sent);
    for (const TransferKey& key : over.keys) Finish(key, EndOf(over.peer, communicator), actions);
  }
}

void BatchAgreementEndpoint::PeerFailed(DeviceId peer, const absl::Status& why,
                                        GrantActions& actions) {
  if (peer == self_ || dead_.contains(peer)) return;
  const absl::Status end =
      absl::UnavailableError(absl::StrCat(Describe(peer), " has failed: ", why.message()));
  dead_.emplace(peer, end);
  holding_back_.erase(peer);
  declined_.erase(peer);
  std::vector<CommunicatorName> names;
  for (const auto& [id, communicator] : communicators_) {
    const std::vector<DeviceId>& devices = communicator.devices;
    if (std::find(devices.begin(), devices.end(), peer) != devices.end()) {
      names.push_back({id, communicator.generation});
    }
  }
  BreakAll(names, end, {.died = peer}, actions);
  FinishUnacknowledged(std::nullopt, peer, actions);
  const auto row = pending_.find(peer);
  if (row != pending_.end()) {
    const absl::btree_map<uint64_t, TransferKey> keys = row->second;
    for (const auto& [order, key] : keys) Finish(key, end, actions);
  }
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                [peer](const Turn& turn) { return turn.peer == peer; }),
                 waiting_.end());
  parked_.erase(
      std::remove_if(parked_.begin(), parked_.end(),
                     [peer](const BatchAgreementMessage& grant) { return grant.from == peer; }),
      parked_.end());
  Advance(actions);
}

void BatchAgreementEndpoint::Settle(GrantActions& actions) {
  const auto is_running = [this](uint64_t id) {
    return std::any_of(queue_.begin(), queue_.end(), [this, id](const Agreed& agreed) {
      return agreed.batch.name.communicator.id == id && !IsOpen(agreed.batch.name.communicator);
    });
  };
  bool is_any_running = false;
  for (auto& [id, communicator] : communicators_) {
    if (communicator.state != CommunicatorState::kBroken) continue;
    if (is_running(id)) {
      is_any_running = true;
      continue;
    }
    if (std::exchange(communicator.is_settled, true)) continue;
    for (const DeviceId device : communicator.devices) {
      if (device == self_ || dead_.contains(device)) continue;
      actions.push_back(SendMessage{
          Message(BatchAgreementMessageKind::kSettled, device, {id, communicator.generation})});
    }
  }
  if (is_any_running) return;
  for (auto& [id, communicator] : communicators_) {
    if (communicator.state != CommunicatorState::kBroken) continue;
    communicator.state = CommunicatorState::kAbsent;
    actions.push_back(FreeCommunicator{{id, communicator.generation}});
  }
}

}  // namespace ferry
