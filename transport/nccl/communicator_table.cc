// SPDX-License-Identifier: Apache-2.0
// CommunicatorTable: the life cycle of one device's communicators, and which peers have failed.
#include "transport/nccl/communicator_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {

const CommunicatorTable::Communicator* CommunicatorTable::Find(uint64_t id) const {
  const auto found = communicators_.find(id);
  return found == communicators_.end() ? nullptr : &found->second;
}

absl::Status CommunicatorTable::Open(const CommunicatorName& name,
                                     absl::Span<const DeviceId> devices) {
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
  if (communicator.state != State::kAbsent) {
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(name), ": generation ", communicator.generation, " of it is not freed yet"));
  }
  Communicator opened;
  opened.state = State::kOpen;
  opened.generation = name.generation;
  opened.lowest = name.generation;
  opened.devices = std::move(sorted);
  communicator = std::move(opened);
  for (const DeviceId peer : devices) failed_.erase(peer);
  return absl::OkStatus();
}

bool CommunicatorTable::IsOpen(const CommunicatorName& name) const {
  return OpenGenerationOf(name.id) == name;
}

std::optional<CommunicatorName> CommunicatorTable::OpenGenerationOf(uint64_t id) const {
  const Communicator* const communicator = Find(id);
  if (communicator == nullptr || communicator->state != State::kOpen) return std::nullopt;
  return CommunicatorName{id, communicator->generation};
}

std::optional<CommunicatorName> CommunicatorTable::UsableWith(DeviceId peer) const {
  // Prefer the smallest: a communicator of the pair itself over one of many devices.
  const Communicator* best = nullptr;
  CommunicatorName name;
  for (const auto& [id, communicator] : communicators_) {
    if (communicator.state != State::kOpen) continue;
    const std::vector<DeviceId>& devices = communicator.devices;
    if (std::find(devices.begin(), devices.end(), peer) == devices.end()) continue;
    if (best != nullptr && best->devices.size() <= devices.size()) continue;
    best = &communicator;
    name = {id, communicator.generation};
  }
  if (best == nullptr) return std::nullopt;
  return name;
}

std::vector<CommunicatorName> CommunicatorTable::CommunicatorsOf(DeviceId peer) const {
  std::vector<CommunicatorName> names;
  for (const auto& [id, communicator] : communicators_) {
    if (Includes(id, peer)) names.push_back({id, communicator.generation});
  }
  return names;
}

bool CommunicatorTable::Includes(uint64_t id, DeviceId peer) const {
  const Communicator* const communicator = Find(id);
  return communicator != nullptr &&
         std::find(communicator->devices.begin(), communicator->devices.end(), peer) !=
             communicator->devices.end();
}

uint32_t CommunicatorTable::LatestGenerationOf(uint64_t id) const {
  const Communicator* const communicator = Find(id);
  return communicator == nullptr ? 0 : communicator->generation;
}

bool CommunicatorTable::IsOver(const CommunicatorName& name) const {
  const Communicator* const communicator = Find(name.id);
  return communicator != nullptr && name.generation < communicator->lowest;
}

bool CommunicatorTable::MarkUsed(uint64_t id, DeviceId peer) {
  return communicators_[id].used.insert(peer).second;
}

std::vector<CommunicatorName> CommunicatorTable::Break(absl::Span<const CommunicatorName> names,
                                                       const absl::Status& why,
                                                       const BreakCause& cause,
                                                       BatchAgreementActions& actions) {
  std::vector<CommunicatorName> open;
  for (const CommunicatorName& name : names) {
    if (IsOpen(name)) open.push_back(name);
  }
  for (const CommunicatorName& name : open) {
    Communicator& communicator = communicators_.find(name.id)->second;
    communicator.state = State::kBroken;
    communicator.lowest = name.generation + 1;
    communicator.why = why;
    actions.push_back(FlagCommunicator{name, why, cause.died});
  }
  for (const CommunicatorName& name : open) actions.push_back(AbortCommunicator{name});
  for (const CommunicatorName& name : open) {
    for (const DeviceId device : communicators_.find(name.id)->second.devices) {
      if (device == self_ || device == cause.told_by || HasFailed(device)) continue;
      BatchAgreementMessage message =
          NewAgreementMessage(BatchAgreementMessageKind::kBreak, self_, device, name);
      message.died = cause.died;
      message.why = why;
      actions.push_back(SendMessage{std::move(message)});
    }
  }
  return open;
}

bool CommunicatorTable::EndGenerationsUpTo(const CommunicatorName& name, const absl::Status& why) {
  Communicator& communicator = communicators_[name.id];
  if (communicator.lowest > name.generation) return false;
  communicator.lowest = name.generation + 1;
  communicator.why = why;
  return true;
}

void CommunicatorTable::MarkSettled(const CommunicatorName& name, DeviceId peer) {
  const auto found = communicators_.find(name.id);
  if (found == communicators_.end()) return;
  Communicator& communicator = found->second;
  if (communicator.state == State::kBroken && communicator.generation == name.generation) {
    communicator.settled.insert(peer);
  }
}

bool CommunicatorTable::HasSettled(uint64_t id, DeviceId peer) const {
  const Communicator* const communicator = Find(id);
  return communicator != nullptr && communicator->settled.contains(peer);
}

void CommunicatorTable::Settle(absl::FunctionRef<bool(uint64_t id)> is_running,
                               BatchAgreementActions& actions) {
  bool is_any_running = false;
  for (auto& [id, communicator] : communicators_) {
    if (communicator.state != State::kBroken) continue;
    if (is_running(id)) {
      is_any_running = true;
      continue;
    }
    if (std::exchange(communicator.is_settled, true)) continue;
    for (const DeviceId device : communicator.devices) {
      if (device == self_ || HasFailed(device)) continue;
      actions.push_back(SendMessage{NewAgreementMessage(BatchAgreementMessageKind::kSettled, self_,
                                                        device, {id, communicator.generation})});
    }
  }
  if (is_any_running) return;
  for (auto& [id, communicator] : communicators_) {
    if (communicator.state != State::kBroken) continue;
    communicator.state = State::kAbsent;
    actions.push_back(FreeCommunicator{{id, communicator.generation}});
  }
}

absl::Status CommunicatorTable::EndOf(DeviceId peer, const CommunicatorName& name) const {
  if (const absl::Status* const failure = FailureOf(peer); failure != nullptr) return *failure;
  const Communicator* const communicator = Find(name.id);
  FERRY_CHECK(communicator != nullptr);
  return absl::AbortedError(
      absl::StrCat(Describe(name), " was aborted: ", communicator->why.message()));
}

const absl::Status* CommunicatorTable::FailureOf(DeviceId peer) const {
  const auto found = failed_.find(peer);
  return found == failed_.end() ? nullptr : &found->second;
}

}  // namespace ferry
