// SPDX-License-Identifier: Apache-2.0
// NcclDevice: a GPU of this process, for keyed transfers over NCCL.
#include "transport/nccl/nccl_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry {

NcclDevice::NcclDevice(const Common& common, int ordinal, DeviceId self)
    : common_(common),
      ordinal_(ordinal),
      self_(self),
      turns_(common.gpus->nccl_arbiter(ordinal)),
      endpoint_(self, common.options.grants, SteadyClock()),
      communicators_(self, common.incarnation, common.options),
      pause_(ordinal),
      puts_(self, ordinal, common.options, SteadyClock(), *this) {}

absl::StatusOr<std::shared_ptr<NcclDevice>> NcclDevice::Create(const Common& common, int ordinal,
                                                               DeviceId self) {
  std::shared_ptr<NcclDevice> device(new NcclDevice(common, ordinal, self));
  FERRY_RETURN_IF_ERROR(device->turns_->SetKeyed(device));
  return device;
}

void NcclDevice::Run(absl::FunctionRef<void(BatchAgreementActions& actions)> change) {
  absl::MutexLock lock(&mu_);
  BatchAgreementActions actions;
  change(actions);
  QueueAll(std::move(actions));
  if (std::exchange(is_performing_, true)) return;
  while (!todo_.empty()) {
    Todo todo = std::move(todo_.front());
    todo_.pop_front();
    mu_.Unlock();
    Perform(std::move(todo));
    mu_.Lock();
  }
  is_performing_ = false;
  if (pause_.is_turn_wanted() && endpoint_.is_quiet() && puts_.endpoint().is_quiet()) {
    turns_->SetQuiesced();
  }
  ScheduleExpiry();
}

void NcclDevice::QueueAll(BatchAgreementActions actions) {
  for (GrantAction& action : actions) {
    if (auto* const flag = std::get_if<FlagCommunicator>(&action)) {
      communicators_.SetEnding(flag->name, flag->why);
      BatchAgreementActions none;
      puts_.Change(
          [flag](PutEndpoint& endpoint, PutActions& ended) {
            endpoint.CommunicatorEnded(flag->name, flag->why, flag->died, ended);
          },
          none);
      FERRY_CHECK(none.empty());
      continue;
    }
    todo_.emplace_back(std::move(action));
  }
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
  } else if (auto* const abort = std::get_if<AbortCommunicator>(&action)) {
    Abort(abort->name);
  } else if (auto* const free = std::get_if<FreeCommunicator>(&action)) {
    Free(free->name);
  }
}

void NcclDevice::Send(NcclTransfer transfer, TellCallback tell) {
  absl::Status refused;
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const TransferKey key = transfer.key;
    refused = stopped_;
    if (!refused.ok()) return;
    if (transfers_.contains(key)) {
      refused = absl::InvalidArgumentError(absl::StrCat(Describe(key), " for a second time"));
      return;
    }
    puts_.CollectBlocks(actions);
    const absl::Time deadline = SteadyClock().Now() + common_.options.transfer_timeout;
    const std::optional<CommunicatorName> offer =
        puts_.Offer(key, transfer.memory.bytes(), deadline);
    if (offer.has_value()) {
      const PeerDevice peer = transfer.peer;
      transfers_.emplace(key, std::move(transfer));
      todo_.emplace_back(Work(
          [tell = std::move(tell), offer]() mutable { std::move(tell)(std::nullopt, offer); }));
      return AddUser(peer, actions);
    }
    BatchAgreementActions wanted;
    refused =
        endpoint_.Add({.key = key, .bytes = transfer.memory.bytes(), .deadline = deadline}, wanted);
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
      std::move(tell)(std::move(grant), std::nullopt);
    }));
    QueueAll(std::move(wanted));
    AddUser(peer, actions);
    if (const absl::Status why = TurnRefusal(); !why.ok()) endpoint_.Cancel(key, why, actions);
  });
  if (!refused.ok()) std::move(transfer.done)(std::move(refused));
}

void NcclDevice::Receive(NcclTransfer transfer, std::optional<BatchAgreementMessage> grant,
                         bool is_offered) {
  absl::Status refused;
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
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
    if (is_offered) {
      // Before any grant of it.
      puts_.Change([&](PutEndpoint&, PutActions& answer) { PutEndpoint::Refuse(key, answer); },
                   actions);
    }
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
    communicators_.DropUser(peer.id);
    endpoint_.Cancel(key, refused, actions);
  });
  if (!refused.ok()) std::move(transfer.done)(std::move(refused));
}

void NcclDevice::Cancel(const TransferKey& key, const absl::Status& why) {
  Run([&](BatchAgreementActions& actions)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { CancelOne(key, why, actions); });
}

void NcclDevice::CancelOne(const TransferKey& key, const absl::Status& why,
                           BatchAgreementActions& actions) {
  if (!puts_.endpoint().contains(key)) return endpoint_.Cancel(key, why, actions);
  puts_.Change(
      [&](PutEndpoint& endpoint, PutActions& cancelled) { endpoint.Cancel(key, why, cancelled); },
      actions);
}

absl::Status NcclDevice::CheckCommunicator(const BatchAgreementMessage& message,
                                           const PeerDevice& from) {
  if (message.kind == BatchAgreementMessageKind::kCancel ||
      message.kind == BatchAgreementMessageKind::kResumed) {
    return absl::OkStatus();
  }
  if (message.communicator.id == communicators_.CliqueIdWith(from)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(message), " speaks of a communicator that is not theirs"));
}

absl::Status NcclDevice::OnMessage(const BatchAgreementMessage& message, const PeerDevice& from) {
  absl::Status status;
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    status = CheckCommunicator(message, from);
    if (status.ok()) status = endpoint_.OnMessage(message, actions);
  });
  return status;
}

void NcclDevice::PeerJoined(const PeerDevice& peer) {
  absl::MutexLock lock(&mu_);
  endpoint_.PeerJoined(peer.id);
  communicators_.SetBack(peer);
}

void NcclDevice::PeerFailed(const PeerDevice& peer, const absl::Status& why) {
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    endpoint_.PeerFailed(peer.id, why, actions);
    communicators_.GiveUp(peer.id);
    communicators_.SetGone(peer, SteadyClock().Now());
    puts_.Change([&](PutEndpoint& endpoint,
                     PutActions& failed) { endpoint.PeerFailed(peer.id, why, failed); },
                 actions);
  });
}

void NcclDevice::Stop(const absl::Status& why, absl::Duration timeout) {
  std::shared_ptr<BatchRunner> runner;
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    stopped_ = why;
    for (const DeviceId peer : communicators_.peers()) {
      communicators_.GiveUp(peer);
      endpoint_.PeerFailed(peer, why, actions);
      puts_.Change([&](PutEndpoint& endpoint,
                       PutActions& failed) { endpoint.PeerFailed(peer, why, failed); },
                   actions);
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
    const PeerCommunicator* const opened = communicators_.Find(batch.name.communicator);
    if (opened != nullptr) {
      runnable.communicator = opened->communicator;
      if (batch.is_first) runnable.warmth = opened->warmth;
    }
    runner = runner_;
    for (const BatchAgreementOperation& each : batch.operations) {
      // The endpoint keeps the transfer until the batch is over, and so does this.
      const auto found = transfers_.find(each.key);
      if (found == transfers_.end()) {
        runnable.communicator = nullptr;
        break;
      }
      if ((each.key.id & kWindowTransferBit) != 0) {
        std::shared_ptr<PutWindow> window = puts_.FindWindow(batch.name.communicator);
        if (window != nullptr && runnable.communicator != nullptr) {
          runnable.steps = RegisterSteps(std::move(window));
        }
        continue;
      }
      runnable.operations.push_back({.is_send = each.key.source == self_,
                                     .data = const_cast<void*>(found->second.memory.data()),
                                     .bytes = static_cast<size_t>(each.bytes)});
      runnable.memory.push_back(found->second.memory);
    }
  }
  const BatchName name = batch.name;
  const bool is_first = runnable.warmth != nullptr;
  runnable.done = [self = shared_from_this(), name, is_first](absl::Status status) {
    if (is_first && status.ok()) self->Measure(name.communicator);
    self->Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
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
    communicators_.DropUser(transfer.peer.id);
  }
  std::move(transfer.done)(std::move(status));
}

void NcclDevice::ScheduleExpiry() {
  const absl::Time next = std::min(endpoint_.NextDeadline(), puts_.endpoint().NextDeadline());
  if (next >= expiry_) return;
  expiry_ = next;
  common_.loop->PostAt(next, [weak = weak_from_this(), next] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
      if (self->expiry_ == next) self->expiry_ = absl::InfiniteFuture();
      self->endpoint_.Expire(actions);
      self->puts_.Change(
          [](PutEndpoint& endpoint, PutActions& expired) { endpoint.Expire(expired); }, actions);
    });
  });
}

void NcclDevice::AddUser(const PeerDevice& peer, BatchAgreementActions& actions) {
  communicators_.SetPeer(peer);
  communicators_.AddUser(peer.id);
  Need(peer.id, actions);
}

void NcclDevice::Prepare(const PeerDevice& peer) {
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!stopped_.ok()) return;
    communicators_.SetPeer(peer);
    Need(peer.id, actions);
  });
}

void NcclDevice::Need(DeviceId peer, BatchAgreementActions& actions) {
  if (!stopped_.ok()) return;
  absl::StatusOr<std::optional<PeerCommunicators::Creation>> needed =
      communicators_.StartCreating(peer, SteadyClock().Now());
  if (!needed.ok()) return Fail(peer, needed.status(), actions);
  if (!needed->has_value()) return;
  PeerCommunicators::Creation& creation = **needed;
  for (const CommunicatorName& evicted : creation.evicted) {
    endpoint_.Break(
        evicted,
        absl::ResourceExhaustedError(absl::StrCat("its memory is wanted for exchanges with ",
                                                  communicators_.NameOfPeer(peer))),
        actions);
  }
  CommunicatorOptions options = {.timeout = common_.options.open_timeout,
                                 .max_ctas = common_.options.max_ctas,
                                 .warms_up = false};
  options.keep_going = [give_up = creation.give_up] {
    return give_up->load() ? absl::CancelledError("the communicator is not needed any more")
                           : absl::OkStatus();
  };
  options.is_gone = [weak = weak_from_this()](const CommunicatorMember& member) {
    const auto self = weak.lock();
    if (self == nullptr) return true;
    absl::MutexLock lock(&self->mu_);
    return self->communicators_.IsGone(member, SteadyClock().Now());
  };
  const bool has_begun = common_.threads->Run(
      "ferry-ncclopen",
      [self = shared_from_this(), peer, key = std::move(creation.key), rank = creation.rank,
       options = std::move(options), peer_has_puts = communicators_.PutBytesOfPeer(peer) > 0] {
        self->OnCommunicatorMade(peer, key, self->Make(key, rank, options, peer_has_puts));
      });
  if (!has_begun) communicators_.CancelCreating(peer);
}

NcclDevice::MadeCommunicator NcclDevice::Make(const CommunicatorKey& key, int rank,
                                              const CommunicatorOptions& options,
                                              bool peer_has_puts) {
  MadeCommunicator result;
  const absl::StatusOr<Gpu*> gpu = common_.gpus->Get(ordinal_);
  if (gpu.ok()) result.free_before = FreeBytesBesideArena(**gpu);
  result.communicator = NcclCommunicator::Make(common_.job.library, *common_.gpus, ordinal_, key,
                                               rank, common_.job.store, options);
  const auto add_rest = [&]() -> absl::Status {
    FERRY_ASSIGN_OR_RETURN(result.gpu, gpu);
    FERRY_ASSIGN_OR_RETURN(result.warmth, result.gpu->arena->Allocate(2));
    result.puts = DevicePuts::Make(*result.gpu, *common_.job.library, common_.options,
                                   peer_has_puts, put_memory_maker_);
    return absl::OkStatus();
  };
  if (result.communicator.ok()) {
    if (absl::Status rest = add_rest(); !rest.ok()) result.communicator = std::move(rest);
  }
  return result;
}

void NcclDevice::OnCommunicatorMade(DeviceId peer, const CommunicatorKey& key,
                                    MadeCommunicator made) {
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::Status status = made.communicator.status();
    // Its peer may have failed, or this process begun to leave, during creation. It is then
    // destroyed with `made`, on this thread, which may block.
    const bool was_given_up = !stopped_.ok() || communicators_.WasGivenUp(peer);
    if (status.ok() && was_given_up)
      status = absl::CancelledError("the communicator is not needed any more");
    if (status.ok()) {
      status = Open(peer, key, made, actions);
      if (status.ok()) return;
      // The peer has already ended it; the next generation replaces it. It is destroyed with
      // `made`, on this thread, which may block.
    }
    communicators_.SetNotCreated(peer);
    const bool was_overtaken = absl::IsFailedPrecondition(status) && made.communicator.ok();
    if (was_given_up || (was_overtaken && communicators_.MarkOvertaken(peer))) {
      // Users of the process that replaced the failed one, or of the next generation.
      if (communicators_.HasUsers(peer)) Need(peer, actions);
    } else {
      Fail(peer, status, actions);
    }
  });
}

absl::Status NcclDevice::Open(DeviceId peer, const CommunicatorKey& key, MadeCommunicator& made,
                              BatchAgreementActions& actions) {
  if (runner_ == nullptr) StartRunner(*made.gpu);
  const std::shared_ptr<NcclCommunicator> communicator = *made.communicator;
  const CommunicatorName name = {key.id(), communicator->generation()};
  if (made.puts.ok()) {
    AddWindow(peer, name, *std::move(made.puts), actions);
  } else {
    puts_.SetRefusal(peer, made.puts.status());
  }
  if (absl::Status opened = endpoint_.Open(name, {self_, peer}, actions); !opened.ok()) {
    endpoint_.Cancel(puts_.WindowKey(peer, name), absl::CancelledError("it was not opened"),
                     actions);
    return opened;
  }
  communicators_.SetOpen(peer, {.name = name,
                                .communicator = communicator,
                                .warmth = std::move(made.warmth),
                                .free_before = made.free_before});
  // Creation involves no exchange with the peer, which may have no communicator yet.
  communicator->Listen([loop = common_.loop, weak = weak_from_this(), peer] {
    loop->Post([weak, peer] {
      if (const auto self = weak.lock()) self->CheckPeer(peer);
    });
  });
  return absl::OkStatus();
}

void NcclDevice::StartRunner(Gpu& gpu) {
  runner_ = std::make_shared<BatchRunner>(
      *common_.gpus, gpu, *common_.loop, *common_.threads,
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

void NcclDevice::Measure(const CommunicatorName& name) {
  const absl::StatusOr<Gpu*> gpu = common_.gpus->Get(ordinal_);
  if (!gpu.ok()) return;
  const uint64_t free_bytes = FreeBytesBesideArena(**gpu);
  absl::MutexLock lock(&mu_);
  communicators_.Measure(name, free_bytes);
}

void NcclDevice::Fail(DeviceId peer, const absl::Status& why, BatchAgreementActions& actions) {
  const absl::Status ended = communicators_.Fail(peer, why, SteadyClock().Now());
  std::vector<TransferKey> keys;
  for (const auto& [key, transfer] : transfers_) {
    if (transfer.peer.id == peer) keys.push_back(key);
  }
  for (const TransferKey& key : keys) CancelOne(key, ended, actions);
}

void NcclDevice::CheckPeer(DeviceId peer) {
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const PeerCommunicator* const opened = communicators_.OpenWith(peer);
    if (opened == nullptr) return;
    const absl::Status wanted = opened->communicator->Check();
    if (!wanted.ok()) endpoint_.Break(opened->name, wanted, actions);
  });
}

void NcclDevice::OnBroken(const std::shared_ptr<NcclCommunicator>& communicator,
                          const absl::Status& why) {
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::optional<CommunicatorName> name = communicators_.NameOf(*communicator);
    if (name.has_value()) endpoint_.Break(*name, why, actions);
  });
}

void NcclDevice::Abort(const CommunicatorName& name) {
  std::shared_ptr<NcclCommunicator> communicator;
  std::shared_ptr<BatchRunner> runner;
  absl::Status why;
  bool is_in_use_at_peer = false;
  {
    absl::MutexLock lock(&mu_);
    runner = runner_;
    const PeerCommunicator* const opened = communicators_.Find(name);
    if (opened != nullptr) {
      communicator = opened->communicator;
      why = communicators_.FailureOf(name);
      // A transfer that the peer has not acknowledged may be running there.
      is_in_use_at_peer = communicators_.HasUsers(*communicators_.PeerOf(name));
    }
  }
  if (communicator == nullptr) return;
  runner->Abort(std::move(communicator), std::move(why), is_in_use_at_peer);
}

void NcclDevice::Free(const CommunicatorName& name) {
  std::shared_ptr<NcclCommunicator> communicator;
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::optional<DeviceId> peer = communicators_.PeerOf(name);
    if (!peer.has_value()) return;
    communicator = communicators_.Free(name);
    puts_.DropWindow(name);
    if (communicators_.HasUsers(*peer)) Need(*peer, actions);
  });
  // Destroying it may access the store.
  common_.threads->Run("ferry-ncclend", [communicator = std::move(communicator)] {});
}

void NcclDevice::UpdatePause(BatchAgreementActions& actions) {
  const bool is_paused = pause_.is_paused();
  puts_.Change(
      [is_paused](PutEndpoint& endpoint, PutActions& resumed) {
        is_paused ? endpoint.Pause() : endpoint.Resume(resumed);
      },
      actions);
  if (is_paused) return endpoint_.Pause(actions);
  endpoint_.Resume(actions);
}

void NcclDevice::SetQuietWanted(bool is_wanted) {
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    pause_.SetQuietWanted(is_wanted);
    UpdatePause(actions);
  });
}

void NcclDevice::OnTurn() {
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (turns_->is_wanted()) {
      const absl::Time now = SteadyClock().Now();
      const std::optional<uint64_t> turn = pause_.BeginTurn(now);
      if (!turn.has_value()) return;
      auto end_patience = [weak = weak_from_this(), turn = *turn] {
        if (const auto self = weak.lock()) self->EndTurnPatience(turn);
      };
      if (common_.after) {
        common_.after(TransferPause::kTurnTimeout, std::move(end_patience));
      } else {
        common_.loop->PostAt(now + TransferPause::kTurnTimeout, std::move(end_patience));
      }
    } else {
      // Before anything new is agreed on. Fails if the turn is requested again meanwhile, which
      // causes another call.
      if (!turns_->TryResume()) return;
      pause_.EndTurn();
    }
    UpdatePause(actions);
  });
}

void NcclDevice::EndTurnPatience(uint64_t turn) {
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!pause_.ExpireTurn(turn)) return;
    std::vector<TransferKey> keys;
    for (const auto& [key, transfer] : transfers_) keys.push_back(key);
    const absl::Status why = TurnRefusal();
    for (const TransferKey& key : keys) CancelOne(key, why, actions);
  });
}

absl::Status NcclDevice::TurnRefusal() const { return pause_.Refusal(SteadyClock().Now()); }

absl::Status NcclDevice::Refusal(DeviceId peer) const {
  absl::MutexLock lock(&mu_);
  FERRY_RETURN_IF_ERROR(TurnRefusal());
  return communicators_.Refusal(peer, SteadyClock().Now());
}

std::shared_ptr<NcclCommunicator> NcclDevice::CommunicatorWith(DeviceId peer) const {
  absl::MutexLock lock(&mu_);
  const PeerCommunicator* const opened = communicators_.OpenWith(peer);
  return opened == nullptr ? nullptr : opened->communicator;
}

size_t NcclDevice::window_count() const {
  absl::MutexLock lock(&mu_);
  return puts_.window_count();
}

std::vector<std::string> NcclDevice::Pending() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> lines = endpoint_.Pending();
  for (std::string& line : puts_.endpoint().Pending()) lines.push_back(std::move(line));
  return lines;
}

void NcclDevice::AddToBatches(const TransferKey& key, BatchAgreementActions& actions) {
  const auto found = transfers_.find(key);
  if (found == transfers_.end()) return;
  absl::Status added =
      endpoint_.Add({.key = key,
                     .bytes = found->second.memory.bytes(),
                     .deadline = SteadyClock().Now() + common_.options.transfer_timeout},
                    actions);
  if (!added.ok()) {
    todo_.emplace_back(
        Work([this, key, added = std::move(added)]() mutable { Finish(key, std::move(added)); }));
  } else if (const absl::Status why = TurnRefusal(); !why.ok()) {
    endpoint_.Cancel(key, why, actions);
  }
}

std::shared_ptr<NcclCommunicator> NcclDevice::OpenCommunicator(DeviceId peer,
                                                               const CommunicatorName& name) {
  const PeerCommunicator* const opened = communicators_.OpenWith(peer);
  return opened == nullptr || opened->name != name ? nullptr : opened->communicator;
}

const Tensor* NcclDevice::MemoryOf(const TransferKey& key) {
  const auto found = transfers_.find(key);
  return found == transfers_.end() ? nullptr : &found->second.memory;
}

void NcclDevice::Deliver(const TransferKey& key, std::shared_ptr<Buffer> memory) {
  NcclTransfer transfer;
  {
    absl::MutexLock lock(&mu_);
    const auto found = transfers_.find(key);
    if (found == transfers_.end()) return;
    transfer = std::move(found->second);
    transfers_.erase(found);
    communicators_.DropUser(transfer.peer.id);
  }
  std::move(transfer.deliver)(std::move(memory));
}

bool NcclDevice::ReceivePut(NcclTransfer& transfer, const CommunicatorName& offer) {
  bool is_accepted = false;
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!stopped_.ok() || transfers_.contains(transfer.key)) return;
    const TransferKey key = transfer.key;
    const PeerDevice peer = transfer.peer;
    const absl::Time deadline = SteadyClock().Now() + common_.options.transfer_timeout;
    puts_.CollectBlocks(actions);
    puts_.Change(
        [&](PutEndpoint& endpoint, PutActions& accepted) {
          is_accepted = endpoint.Accept(key, offer, transfer.put_bytes, deadline, accepted);
        },
        actions);
    if (!is_accepted) return;
    transfers_.emplace(key, std::move(transfer));
    AddUser(peer, actions);
    if (const absl::Status why = TurnRefusal(); !why.ok()) CancelOne(key, why, actions);
  });
  return is_accepted;
}

bool NcclDevice::HasRoom(DeviceId peer, const CommunicatorName& offer, uint64_t bytes) {
  bool has_room = false;
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    puts_.CollectBlocks(actions);
    has_room = OpenCommunicator(peer, offer) != nullptr && puts_.endpoint().HasWindow(peer) &&
               puts_.endpoint().pool().HasRoom(bytes);
  });
  return has_room;
}

absl::Status NcclDevice::PutRefusal(DeviceId peer) const {
  absl::MutexLock lock(&mu_);
  return puts_.Refusal(peer);
}

absl::Status NcclDevice::OnPutMessage(const PutMessage& message, const PeerDevice& from) {
  absl::Status status;
  Run([&](BatchAgreementActions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (message.kind != PutMessageKind::kNoRoom &&
        message.communicator.id != communicators_.CliqueIdWith(from)) {
      status = absl::InvalidArgumentError(
          absl::StrCat(Describe(message), " speaks of a communicator that is not theirs"));
      return;
    }
    puts_.Change([&](PutEndpoint& endpoint,
                     PutActions& heard) { status = endpoint.OnMessage(message, heard); },
                 actions);
  });
  return status;
}

void NcclDevice::AddWindow(DeviceId peer, const CommunicatorName& name, DevicePuts::Made made,
                           BatchAgreementActions& actions) {
  if (const absl::Status why = puts_.WindowRefusal(peer); !why.ok()) {
    return puts_.SetRefusal(peer, why);
  }
  const TransferKey key = puts_.WindowKey(peer, name);
  // Its size is the same on both, and says nothing.
  const absl::Status added = endpoint_.Add(
      {.key = key, .bytes = 1, .deadline = SteadyClock().Now() + common_.options.transfer_timeout},
      actions);
  if (!added.ok()) return puts_.SetRefusal(peer, added);
  puts_.AddWindow(name, std::move(made));
  NcclTransfer transfer;
  transfer.key = key;
  transfer.peer = communicators_.PeerOfId(peer);
  transfer.done = [weak = weak_from_this(), peer, name](const absl::Status& status) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    absl::MutexLock lock(&self->mu_);
    self->puts_.OnWindow(peer, name, status, self->communicators_.PutBytesOfPeer(peer),
                         self->OpenCommunicator(peer, name) != nullptr);
  };
  transfers_.emplace(key, std::move(transfer));
  communicators_.AddUser(peer);
}

}  // namespace ferry
