// SPDX-License-Identifier: Apache-2.0
// Performs a batch agreement endpoint's actions in order.
#include "transport/nccl/nccl_device.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry {

NcclDevice::NcclDevice(const Common& common, int ordinal, DeviceId self)
    : common_(common),
      ordinal_(ordinal),
      self_(self),
      turns_(common.gpus->turns(ordinal)),
      endpoint_(self, common.options.grants, SteadyClock()),
      cache_(common.options.memory_bytes),
      communicator_bytes_(common.options.communicator_bytes()) {}

absl::StatusOr<std::shared_ptr<NcclDevice>> NcclDevice::Create(const Common& common, int ordinal,
                                                               DeviceId self) {
  std::shared_ptr<NcclDevice> device(new NcclDevice(common, ordinal, self));
  FERRY_RETURN_IF_ERROR(device->turns_->SetKeyed(device));
  return device;
}

void NcclDevice::Run(absl::FunctionRef<void(GrantActions& actions)> change) {
  absl::MutexLock lock(&mu_);
  GrantActions actions;
  change(actions);
  for (GrantAction& action : actions) todo_.emplace_back(std::move(action));
  if (std::exchange(is_performing_, true)) return;
  while (!todo_.empty()) {
    Todo todo = std::move(todo_.front());
    todo_.pop_front();
    mu_.Unlock();
    Perform(std::move(todo));
    mu_.Lock();
  }
  is_performing_ = false;
  if (is_turn_wanted_ && endpoint_.is_quiet()) turns_->SetQuiet();
  ScheduleExpiry();
}

void NcclDevice::Perform(Todo todo) {
  if (auto* const work = std::get_if<Work>(&todo)) return std::move(*work)();
  GrantAction action = std::get<GrantAction>(std::move(todo));
  if (auto* const send = std::get_if<SendMessage>(&action)) {
    common_.send(send->message);
  } else if (auto* const launch = std::get_if<LaunchBatch>(&action)) {
    Launch(std::move(launch->batch));
  } else if (auto* const finish = std::get_if<FinishTransfer>(&action)) {
    Finish(finish->key, std::move(finish->status));
  } else if (auto* const flag = std::get_if<FlagCommunicator>(&action)) {
    absl::MutexLock lock(&mu_);
    Pair* const pair = PairOf(flag->name);
    if (pair == nullptr) return;
    pair->state = Pair::State::kEnding;
    pair->failed = flag->why;
  } else if (auto* const abort = std::get_if<AbortCommunicator>(&action)) {
    Abort(abort->name);
  } else if (auto* const free = std::get_if<FreeCommunicator>(&action)) {
    Free(free->name);
  }
}

void NcclDevice::Send(
    NcclTransfer transfer,
    absl::AnyInvocable<void(std::optional<BatchAgreementMessage> grant) &&> tell) {
  absl::Status refused;
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const TransferKey key = transfer.key;
    refused = stopped_;
    if (!refused.ok()) return;
    GrantActions wanted;
    refused = endpoint_.Add({.key = key,
                             .bytes = transfer.memory.bytes(),
                             .deadline = SteadyClock().Now() + common_.options.transfer_timeout},
                            wanted);
    if (!refused.ok()) return;
    // The first message to the destination, with its grant if there is one.
    std::optional<BatchAgreementMessage> grant;
    for (auto it = wanted.begin(); it != wanted.end(); ++it) {
      auto* const send = std::get_if<SendMessage>(&*it);
      if (send == nullptr || send->message.to != key.destination ||
          send->message.kind != BatchAgreementMessageKind::kGrant) {
        continue;
      }
      grant = std::move(send->message);
      wanted.erase(it);
      break;
    }
    const PeerDevice peer = transfer.peer;
    transfers_.emplace(key, std::move(transfer));
    todo_.emplace_back(Work([tell = std::move(tell), grant = std::move(grant)]() mutable {
      std::move(tell)(std::move(grant));
    }));
    for (GrantAction& action : wanted) todo_.emplace_back(std::move(action));
    AddUser(peer, actions);
    if (const absl::Status why = TurnRefusal(); !why.ok()) endpoint_.Cancel(key, why, actions);
  });
  if (!refused.ok()) std::move(transfer.done)(std::move(refused));
}

void NcclDevice::Receive(NcclTransfer transfer, std::optional<BatchAgreementMessage> grant) {
  absl::Status refused;
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    refused = stopped_;
    if (!refused.ok()) return;
    const BatchAgreementTransfer added = {
        .key = transfer.key,
        .bytes = transfer.memory.bytes(),
        .deadline = SteadyClock().Now() + common_.options.transfer_timeout};
    if (transfers_.contains(transfer.key)) {
      refused =
          absl::InvalidArgumentError(absl::StrCat(Describe(transfer.key), " for a second time"));
      return;
    }
    if (grant.has_value()) refused = CheckCommunicator(*grant, transfer.peer);
    if (!refused.ok()) return;
    const TransferKey key = transfer.key;
    const PeerDevice peer = transfer.peer;
    transfers_.emplace(key, std::move(transfer));
    refused = grant.has_value() ? endpoint_.AddWithGrant(added, *grant, actions)
                                : endpoint_.Add(added, actions);
    AddUser(peer, actions);
    if (refused.ok()) {
      if (const absl::Status why = TurnRefusal(); !why.ok()) endpoint_.Cancel(key, why, actions);
      return;
    }
    // The transfer may have been added all the same, and then ends by itself.
    const auto found = transfers_.find(key);
    transfer = std::move(found->second);
    transfers_.erase(found);
    DropUser(peer.id);
    endpoint_.Cancel(key, refused, actions);
  });
  if (!refused.ok()) std::move(transfer.done)(std::move(refused));
}

void NcclDevice::Cancel(const TransferKey& key, const absl::Status& why) {
  Run([&](GrantActions& actions)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { endpoint_.Cancel(key, why, actions); });
}

absl::Status NcclDevice::CheckCommunicator(const BatchAgreementMessage& message,
                                           const PeerDevice& from) {
  if (message.kind == BatchAgreementMessageKind::kCancel ||
      message.kind == BatchAgreementMessageKind::kResumed) {
    return absl::OkStatus();
  }
  Pair& pair = pairs_[from.id];
  if (pair.clique_incarnation != from.incarnation) {
    const absl::StatusOr<CliqueKey> clique = CliqueWith(from);
    pair.clique_id = clique.ok() ? clique->id() : 0;
    pair.clique_incarnation = from.incarnation;
  }
  if (message.communicator.id == pair.clique_id) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(message), " speaks of a communicator that is not theirs"));
}

absl::Status NcclDevice::OnMessage(const BatchAgreementMessage& message, const PeerDevice& from) {
  absl::Status status;
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    status = CheckCommunicator(message, from);
    if (status.ok()) status = endpoint_.OnMessage(message, actions);
  });
  return status;
}

void NcclDevice::PeerJoined(DeviceId peer) {
  absl::MutexLock lock(&mu_);
  endpoint_.PeerJoined(peer);
}

void NcclDevice::PeerFailed(DeviceId peer, const absl::Status& why) {
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    endpoint_.PeerFailed(peer, why, actions);
    const auto found = pairs_.find(peer);
    if (found != pairs_.end() && found->second.give_up != nullptr)
      found->second.give_up->store(true);
  });
}

void NcclDevice::Stop(const absl::Status& why, absl::Duration timeout) {
  std::shared_ptr<BatchRunner> runner;
  Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    stopped_ = why;
    for (auto& [peer, pair] : pairs_) {
      if (pair.give_up != nullptr) pair.give_up->store(true);
      endpoint_.PeerFailed(peer, why, actions);
    }
    runner = runner_;
  });
  {
    // Another thread may be performing the actions.
    const auto is_through = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !is_performing_ && todo_.empty();
    };
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&is_through), timeout);
  }
  if (runner != nullptr) runner->WaitUntilReached(timeout);
}

void NcclDevice::Launch(AgreedBatch batch) {
  RunnableBatch runnable;
  std::shared_ptr<BatchRunner> runner;
  {
    absl::MutexLock lock(&mu_);
    Pair* const pair = PairOf(batch.name.communicator);
    if (pair != nullptr) {
      runnable.communicator = pair->communicator;
      if (batch.is_first) runnable.warmth = pair->warmth;
    }
    runner = runner_;
    for (const BatchAgreementOperation& each : batch.operations) {
      // The endpoint keeps the transfer until the batch is over, and so does this.
      const auto found = transfers_.find(each.key);
      if (found == transfers_.end()) {
        runnable.communicator = nullptr;
        break;
      }
      runnable.operations.push_back({.is_send = each.key.source == self_,
                                     .data = const_cast<void*>(found->second.memory.data()),
                                     .bytes = static_cast<size_t>(each.bytes)});
    }
  }
  const BatchName name = batch.name;
  const bool is_first = runnable.warmth != nullptr;
  runnable.done = [self = shared_from_this(), name, is_first](absl::Status status) {
    if (is_first && status.ok()) self->Weigh(name.communicator);
    self->Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
      self->endpoint_.Completed(name, status, actions);
    });
  };
  if (runnable.communicator == nullptr) {
    return std::move(runnable.done)(
        absl::AbortedError(absl::StrCat(Describe(name.communicator), " is not here any more")));
  }
  runnable.peer_rank = 1 - runnable.communicator->rank();
  runner->Launch(std::move(runnable));
}

void NcclDevice::Finish(const TransferKey& key, absl::Status status) {
  NcclTransfer transfer;
  {
    absl::MutexLock lock(&mu_);
    const auto found = transfers_.find(key);
    if (found == transfers_.end()) return;
    transfer = std::move(found->second);
    transfers_.erase(found);
    DropUser(transfer.peer.id);
  }
  std::move(transfer.done)(std::move(status));
}

void NcclDevice::ScheduleExpiry() {
  const absl::Time next = endpoint_.NextDeadline();
  if (next >= expiry_) return;
  expiry_ = next;
  common_.loop->PostAt(next, [weak = weak_from_this(), next] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->Run([&](GrantActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
      if (self->expiry_ == next) self->expiry_ = absl::InfiniteFuture();
      self->endpoint_.Expire(actions);
    });
  });
}

std::vector<std::string> NcclDevice::Pending() const {
  absl::MutexLock lock(&mu_);
  return endpoint_.Pending();
}

}  // namespace ferry
