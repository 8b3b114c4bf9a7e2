// SPDX-License-Identifier: Apache-2.0
// PeerCommunicators: the state of a GPU's communicators, one for each peer GPU.
#include "transport/nccl/peer_communicators.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry {
namespace {

// Distinguishes them from users' communicators over the same devices.
constexpr char kPurpose[] = "keyed transfers";
// A process that leaves closes its connections while its communicators end.
constexpr absl::Duration kLeavingTime = absl::Milliseconds(200);
// Other users of the GPU allocate too: anything above this multiple of the estimate is theirs.
constexpr uint64_t kMostOff = 4;

}  // namespace

PeerCommunicators::PeerCommunicators(DeviceId self, uint64_t incarnation,
                                     const NcclTransportOptions& options)
    : self_(self),
      incarnation_(incarnation),
      options_(options),
      cache_(options.memory_bytes),
      communicator_bytes_(options.communicator_bytes()) {}

absl::StatusOr<CommunicatorKey> PeerCommunicators::KeyWith(const PeerDevice& peer) const {
  std::vector<CommunicatorMember> members = {
      {self_.value(), incarnation_},
      {peer.id.value(), peer.incarnation},
  };
  if (peer.id < self_) std::swap(members[0], members[1]);
  return CommunicatorKey::Create(std::move(members), kPurpose);
}

std::vector<DeviceId> PeerCommunicators::peers() const {
  std::vector<DeviceId> peers;
  for (const auto& [peer, pair] : pairs_) peers.push_back(peer);
  return peers;
}

void PeerCommunicators::UpdateHold(Pair& pair) {
  const bool is_wanted = pair.users > 0 || pair.state == State::kCreating;
  if (pair.communicator.empty() || is_wanted == pair.is_held) return;
  pair.is_held = is_wanted;
  if (!is_wanted) return cache_.Unuse(pair.communicator);
  pair.is_held = cache_.Use(pair.communicator);
}

void PeerCommunicators::AddUser(DeviceId peer) {
  Pair& pair = pairs_[peer];
  ++pair.users;
  UpdateHold(pair);
}

void PeerCommunicators::DropUser(DeviceId peer) {
  Pair& pair = pairs_[peer];
  --pair.users;
  UpdateHold(pair);
}

bool PeerCommunicators::HasUsers(DeviceId peer) const {
  const auto found = pairs_.find(peer);
  return found != pairs_.end() && found->second.users > 0;
}

uint64_t PeerCommunicators::CliqueIdWith(const PeerDevice& peer) {
  Pair& pair = pairs_[peer.id];
  if (pair.clique_incarnation != peer.incarnation) {
    const absl::StatusOr<CommunicatorKey> communicator = KeyWith(peer);
    pair.clique_id = communicator.ok() ? communicator->id() : 0;
    pair.clique_incarnation = peer.incarnation;
  }
  return pair.clique_id;
}

absl::StatusOr<std::vector<CommunicatorName>> PeerCommunicators::Reserve(Pair& pair) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> evicted,
                         cache_.Reserve(pair.communicator, communicator_bytes_));
  std::vector<CommunicatorName> names;
  for (auto& [peer, other] : pairs_) {
    if (std::find(evicted.begin(), evicted.end(), other.communicator) == evicted.end()) continue;
    other.is_held = false;
    names.push_back(other.opened.name);
  }
  pair.is_held = true;
  return names;
}

absl::StatusOr<std::optional<PeerCommunicators::Creation>> PeerCommunicators::StartCreating(
    DeviceId peer, absl::Time now) {
  Pair& pair = pairs_[peer];
  if (pair.state != State::kIdle) return std::nullopt;
  if (!pair.retry.IsDue(now)) return pair.failed;
  FERRY_ASSIGN_OR_RETURN(const CommunicatorKey key, KeyWith(pair.peer));
  pair.communicator = key.prefix();
  absl::StatusOr<std::vector<CommunicatorName>> evicted = Reserve(pair);
  if (!evicted.ok()) {
    pair.communicator.clear();
    return evicted.status();
  }
  pair.state = State::kCreating;
  pair.give_up = std::make_shared<std::atomic<bool>>(false);
  return Creation{key, pair.peer.id < self_ ? 1 : 0, pair.give_up, *std::move(evicted)};
}

void PeerCommunicators::GiveUp(DeviceId peer) {
  const auto found = pairs_.find(peer);
  if (found != pairs_.end() && found->second.give_up != nullptr) {
    found->second.give_up->store(true);
  }
}

void PeerCommunicators::SetGone(const PeerDevice& peer, absl::Time now) {
  Pair& pair = pairs_[peer.id];
  pair.gone_incarnation = peer.incarnation;
  pair.gone_since = now;
}

void PeerCommunicators::SetBack(const PeerDevice& peer) {
  Pair& pair = pairs_[peer.id];
  if (pair.gone_incarnation == peer.incarnation) pair.gone_since = absl::InfiniteFuture();
}

bool PeerCommunicators::IsGone(const CommunicatorMember& member, absl::Time now) const {
  const auto found = pairs_.find(DeviceId(member.device));
  return found != pairs_.end() && found->second.gone_incarnation == member.incarnation &&
         now >= found->second.gone_since + kLeavingTime;
}

bool PeerCommunicators::WasGivenUp(DeviceId peer) const {
  const auto found = pairs_.find(peer);
  return found == pairs_.end() || found->second.give_up == nullptr || found->second.give_up->load();
}

void PeerCommunicators::SetOpen(DeviceId peer, PeerCommunicator opened) {
  Pair& pair = pairs_[peer];
  pair.opened = std::move(opened);
  pair.state = State::kOpen;
  pair.give_up = nullptr;
  pair.failed = absl::OkStatus();
  pair.was_overtaken = false;
  pair.retry.Succeeded();
  UpdateHold(pair);
}

void PeerCommunicators::SetNotCreated(DeviceId peer) {
  Pair& pair = pairs_[peer];
  pair.give_up = nullptr;
  Forget(pair);
}

bool PeerCommunicators::MarkOvertaken(DeviceId peer) {
  return !std::exchange(pairs_[peer].was_overtaken, true);
}

absl::Status PeerCommunicators::Fail(DeviceId peer, const absl::Status& why, absl::Time now) {
  Pair& pair = pairs_[peer];
  pair.retry.Failed(now);
  pair.failed = why;
  return absl::AbortedError(
      absl::StrCat("no communicator with ", pair.peer.name, ": ", why.message()));
}

void PeerCommunicators::Forget(Pair& pair) {
  pair.state = State::kIdle;
  cache_.Remove(std::exchange(pair.communicator, ""));
  pair.is_held = false;
}

void PeerCommunicators::SetEnding(const CommunicatorName& name, const absl::Status& why) {
  const std::optional<DeviceId> peer = PeerOf(name);
  if (!peer.has_value()) return;
  Pair& pair = pairs_[*peer];
  pair.state = State::kEnding;
  pair.failed = why;
}

std::shared_ptr<NcclCommunicator> PeerCommunicators::Free(const CommunicatorName& name) {
  const std::optional<DeviceId> peer = PeerOf(name);
  FERRY_CHECK(peer.has_value());
  Pair& pair = pairs_[*peer];
  std::shared_ptr<NcclCommunicator> communicator = std::exchange(pair.opened.communicator, nullptr);
  pair.opened.name = {};
  Forget(pair);
  return communicator;
}

void PeerCommunicators::Measure(const CommunicatorName& name, uint64_t free_bytes) {
  const std::optional<DeviceId> peer = PeerOf(name);
  if (!peer.has_value()) return;
  const Pair& pair = pairs_[*peer];
  const uint64_t free_before = pair.opened.free_before;
  if (free_before == 0 || free_bytes == 0) return;
  const uint64_t taken = free_before - std::min(free_bytes, free_before);
  // Never reduced: a communicator evicted for this one may have freed its memory meanwhile.
  communicator_bytes_ =
      std::clamp(taken, communicator_bytes_, options_.communicator_bytes() * kMostOff);
  cache_.Resize(pair.communicator, communicator_bytes_);
}

const PeerCommunicator* PeerCommunicators::Find(const CommunicatorName& name) const {
  for (const auto& [peer, pair] : pairs_) {
    if (pair.opened.name == name) return &pair.opened;
  }
  return nullptr;
}

std::optional<DeviceId> PeerCommunicators::PeerOf(const CommunicatorName& name) const {
  for (const auto& [peer, pair] : pairs_) {
    if (pair.opened.name == name) return peer;
  }
  return std::nullopt;
}

const PeerCommunicator* PeerCommunicators::OpenWith(DeviceId peer) const {
  const auto found = pairs_.find(peer);
  if (found == pairs_.end() || found->second.state != State::kOpen) return nullptr;
  return &found->second.opened;
}

std::optional<CommunicatorName> PeerCommunicators::NameOf(
    const NcclCommunicator& communicator) const {
  for (const auto& [peer, pair] : pairs_) {
    if (pair.opened.communicator.get() == &communicator) return pair.opened.name;
  }
  return std::nullopt;
}

absl::Status PeerCommunicators::FailureOf(const CommunicatorName& name) const {
  const std::optional<DeviceId> peer = PeerOf(name);
  return peer.has_value() ? pairs_.find(*peer)->second.failed : absl::OkStatus();
}

absl::Status PeerCommunicators::Refusal(DeviceId peer, absl::Time now) const {
  const auto found = pairs_.find(peer);
  if (found == pairs_.end()) return absl::OkStatus();
  const Pair& pair = found->second;
  const absl::Duration left = pair.retry.Left(now);
  if (pair.state != State::kIdle || left <= absl::ZeroDuration()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("no communicator with ", pair.peer.name, ": ",
                                                    pair.failed.message(), "; tried again in ",
                                                    ShortDuration(left)));
}

}  // namespace ferry
