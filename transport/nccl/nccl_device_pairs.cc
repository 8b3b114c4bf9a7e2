// SPDX-License-Identifier: Apache-2.0
// The communicators of a GPU: one for each peer GPU, created on demand.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "transport/nccl/nccl_device.h"

namespace ferry {
namespace {

// Distinguishes them from users' communicators over the same devices.
constexpr char kPurpose[] = "keyed transfers";
// Other users of the GPU allocate too: anything above this multiple of the estimate is theirs.
constexpr uint64_t kMostOff = 4;

}  // namespace

absl::StatusOr<CliqueKey> NcclDevice::CliqueWith(const PeerDevice& peer) const {
  std::vector<CliqueMember> members = {
      {self_.value(), common_.incarnation},
      {peer.id.value(), peer.incarnation},
  };
  if (peer.id < self_) std::swap(members[0], members[1]);
  return CliqueKey::Create(std::move(members), kPurpose);
}

void NcclDevice::UpdateHold(Pair& pair) {
  const bool is_wanted = pair.users > 0 || pair.state == Pair::State::kMaking;
  if (pair.clique.empty() || is_wanted == pair.is_held) return;
  pair.is_held = is_wanted;
  if (!is_wanted) return cache_.Unuse(pair.clique);
  pair.is_held = cache_.Use(pair.clique);
}

void NcclDevice::AddUser(const PeerDevice& peer, GrantActions& actions) {
  Pair& pair = pairs_[peer.id];
  pair.peer = peer;
  ++pair.users;
  UpdateHold(pair);
  Need(pair, actions);
}

void NcclDevice::DropUser(DeviceId peer) {
  Pair& pair = pairs_[peer];
  --pair.users;
  UpdateHold(pair);
}

void NcclDevice::Prepare(const PeerDevice& peer) {
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!stopped_.ok()) return;
    Pair& pair = pairs_[peer.id];
    pair.peer = peer;
    Need(pair, actions);
  });
}

absl::Status NcclDevice::Reserve(Pair& pair, GrantActions& actions) {
  FERRY_ASSIGN_OR_RETURN(const std::vector<std::string> evicted,
                         cache_.Reserve(pair.clique, communicator_bytes_));
  for (auto& [peer, other] : pairs_) {
    if (std::find(evicted.begin(), evicted.end(), other.clique) == evicted.end()) continue;
    other.is_held = false;
    endpoint_.Break(other.name,
                    absl::ResourceExhaustedError(
                        absl::StrCat("its memory is wanted for exchanges with ", pair.peer.name)),
                    actions);
  }
  pair.is_held = true;
  return absl::OkStatus();
}

void NcclDevice::Need(Pair& pair, GrantActions& actions) {
  if (pair.state != Pair::State::kIdle || !stopped_.ok()) return;
  if (!pair.retry.IsDue(SteadyClock().Now())) return Fail(pair, pair.failed, actions);
  const int rank = pair.peer.id < self_ ? 1 : 0;
  const absl::StatusOr<CliqueKey> key = CliqueWith(pair.peer);
  if (!key.ok()) return Fail(pair, key.status(), actions);
  pair.clique = key->prefix();
  if (const absl::Status reserved = Reserve(pair, actions); !reserved.ok()) {
    pair.clique.clear();
    return Fail(pair, reserved, actions);
  }
  pair.state = Pair::State::kMaking;
  pair.give_up = std::make_shared<std::atomic<bool>>(false);
  CommunicatorOptions options = {.timeout = common_.options.open_timeout,
                                 .max_ctas = common_.options.max_ctas,
                                 .warms_up = false};
  options.keep_going = [give_up = pair.give_up] {
    return give_up->load() ? absl::CancelledError("it is not wanted any more") : absl::OkStatus();
  };
  const bool has_begun =
      common_.threads->Run("ferry-ncclopen", [self = shared_from_this(), peer = pair.peer.id,
                                              key = *key, rank, options = std::move(options)] {
        MadeCommunicator result;
        const absl::StatusOr<Gpu*> gpu = self->common_.gpus->Get(self->ordinal_);
        if (gpu.ok()) result.free_before = FreeBytesBesideArena(**gpu);
        result.communicator =
            NcclCommunicator::Make(self->common_.job.library, *self->common_.gpus, self->ordinal_,
                                   key, rank, self->common_.job.store, options);
        const auto add_rest = [&]() -> absl::Status {
          FERRY_ASSIGN_OR_RETURN(result.gpu, gpu);
          FERRY_ASSIGN_OR_RETURN(result.warmth, result.gpu->arena->Allocate(2));
          return absl::OkStatus();
        };
        if (result.communicator.ok()) {
          if (absl::Status rest = add_rest(); !rest.ok()) result.communicator = std::move(rest);
        }
        self->Made(peer, key, std::move(result));
      });
  if (!has_begun) pair.state = Pair::State::kIdle;
}

void NcclDevice::Made(DeviceId peer, const CliqueKey& key, MadeCommunicator result) {
  absl::StatusOr<std::shared_ptr<NcclCommunicator>>& made = result.communicator;
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Pair& pair = pairs_[peer];
    absl::Status status = made.status();
    // Its peer may have failed, or this process begun to leave, during creation. It is then
    // destroyed with `result`, on this thread, which may block.
    const bool was_given_up = !stopped_.ok() || pair.give_up == nullptr || pair.give_up->load();
    if (status.ok() && was_given_up) status = absl::CancelledError("it is not wanted any more");
    if (status.ok()) {
      if (runner_ == nullptr) {
        runner_ = std::make_shared<BatchRunner>(
            *common_.gpus, *result.gpu, *common_.loop, *common_.threads,
            [weak = weak_from_this()](const std::shared_ptr<NcclCommunicator>& communicator,
                                      const absl::Status& why) {
              if (const auto self = weak.lock()) self->OnBroken(communicator, why);
            },
            common_.learn,
            [weak = weak_from_this()](bool is_wanted) {
              if (const auto self = weak.lock()) self->SetQuietWanted(is_wanted);
            });
        common_.gpus->gate()->Listen(runner_);
      }
      pair.name = {key.id(), (*made)->generation()};
      pair.communicator = *made;
      pair.warmth = std::move(result.warmth);
      pair.free_before = result.free_before;
      pair.state = Pair::State::kOpen;
      pair.give_up = nullptr;
      GrantActions opened;
      status = endpoint_.Open(pair.name, {self_, peer}, opened);
      if (status.ok()) {
        pair.failed = absl::OkStatus();
        pair.was_overtaken = false;
        pair.retry.Succeeded();
        UpdateHold(pair);
        for (GrantAction& action : opened) actions.push_back(std::move(action));
        // Creation involves no exchange with the peer, which may have no communicator yet.
        pair.communicator->Listen([loop = common_.loop, weak = weak_from_this(), peer] {
          loop->Post([weak, peer] {
            if (const auto self = weak.lock()) self->CheckPair(peer);
          });
        });
        return;
      }
      // The peer has already ended it; the next generation replaces it. It is destroyed with
      // `made`, on this thread, which may block.
      pair.communicator = nullptr;
    }
    pair.state = Pair::State::kIdle;
    pair.give_up = nullptr;
    cache_.Remove(std::exchange(pair.clique, ""));
    pair.is_held = false;
    const bool was_overtaken = absl::IsFailedPrecondition(status) && made.ok();
    if (was_given_up || (was_overtaken && !std::exchange(pair.was_overtaken, true))) {
      // Users of the process that replaced the failed one, or of the next generation.
      if (pair.users > 0) Need(pair, actions);
    } else {
      Fail(pair, status, actions);
    }
  });
}

void NcclDevice::Weigh(const CommunicatorName& name) {
  const absl::StatusOr<Gpu*> gpu = common_.gpus->Get(ordinal_);
  if (!gpu.ok()) return;
  const uint64_t free_now = FreeBytesBesideArena(**gpu);
  const uint64_t estimate = common_.options.communicator_bytes();
  absl::MutexLock lock(&mu_);
  const Pair* const pair = PairOf(name);
  if (pair == nullptr || pair->free_before == 0 || free_now == 0) return;
  const uint64_t taken = pair->free_before - std::min(free_now, pair->free_before);
  // Never reduced: a communicator evicted for this one may have freed its memory meanwhile.
  communicator_bytes_ = std::clamp(taken, communicator_bytes_, estimate * kMostOff);
  cache_.Resize(pair->clique, communicator_bytes_);
}

void NcclDevice::Fail(Pair& pair, const absl::Status& why, GrantActions& actions) {
  pair.retry.Failed(SteadyClock().Now());
  pair.failed = why;
  std::vector<TransferKey> keys;
  for (const auto& [key, transfer] : transfers_) {
    if (transfer.peer.id == pair.peer.id) keys.push_back(key);
  }
  const absl::Status ended = absl::AbortedError(
      absl::StrCat("no communicator with ", pair.peer.name, ": ", why.message()));
  for (const TransferKey& key : keys) endpoint_.Cancel(key, ended, actions);
}

absl::Status NcclDevice::Refusal(DeviceId peer) const {
  absl::MutexLock lock(&mu_);
  FERRY_RETURN_IF_ERROR(TurnRefusal());
  const auto found = pairs_.find(peer);
  if (found == pairs_.end()) return absl::OkStatus();
  const Pair& pair = found->second;
  const absl::Duration left = pair.retry.Left(SteadyClock().Now());
  if (pair.state != Pair::State::kIdle || left <= absl::ZeroDuration()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("no communicator with ", pair.peer.name, ": ",
                                                    pair.failed.message(), "; tried again in ",
                                                    ShortDuration(left)));
}

std::shared_ptr<NcclCommunicator> NcclDevice::CommunicatorWith(DeviceId peer) const {
  absl::MutexLock lock(&mu_);
  const auto found = pairs_.find(peer);
  if (found == pairs_.end() || found->second.state != Pair::State::kOpen) return nullptr;
  return found->second.communicator;
}

NcclDevice::Pair* NcclDevice::PairOf(const CommunicatorName& name) {
  for (auto& [peer, pair] : pairs_) {
    if (pair.name == name) return &pair;
  }
  return nullptr;
}

void NcclDevice::CheckPair(DeviceId peer) {
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Pair& pair = pairs_[peer];
    if (pair.state != Pair::State::kOpen) return;
    const absl::Status wanted = pair.communicator->Check();
    if (!wanted.ok()) endpoint_.Break(pair.name, wanted, actions);
  });
}

void NcclDevice::OnBroken(const std::shared_ptr<NcclCommunicator>& communicator,
                          const absl::Status& why) {
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& [peer, pair] : pairs_) {
      if (pair.communicator != communicator) continue;
      return endpoint_.Break(pair.name, why, actions);
    }
  });
}

void NcclDevice::Abort(const CommunicatorName& name) {
  std::shared_ptr<NcclCommunicator> communicator;
  std::shared_ptr<BatchRunner> runner;
  absl::Status why;
  {
    absl::MutexLock lock(&mu_);
    runner = runner_;
    if (Pair* const pair = PairOf(name); pair != nullptr) {
      communicator = pair->communicator;
      why = pair->failed;
    }
  }
  if (communicator != nullptr) runner->Abort(std::move(communicator), std::move(why));
}

void NcclDevice::Free(const CommunicatorName& name) {
  std::shared_ptr<NcclCommunicator> communicator;
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Pair* const pair = PairOf(name);
    if (pair == nullptr) return;
    communicator = std::exchange(pair->communicator, nullptr);
    pair->name = {};
    pair->state = Pair::State::kIdle;
    cache_.Remove(std::exchange(pair->clique, ""));
    pair->is_held = false;
    if (pair->users > 0) Need(*pair, actions);
  });
  // Destroying it may access the store.
  common_.threads->Run("ferry-ncclend", [communicator = std::move(communicator)] {});
}

}  // namespace ferry
