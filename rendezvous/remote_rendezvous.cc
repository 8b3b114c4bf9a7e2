// SPDX-License-Identifier: Apache-2.0
// Local or remote delivery, and the list of pending receives.
#include "rendezvous/remote_rendezvous.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/bounded_text.h"
#include "base/logging.h"
#include "base/recycled.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

absl::Status NotHere(absl::string_view side, const RendezvousKey& key, const TaskName& worker) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Invalid rendezvous key (", side, "): ", BoundedName(key.text()), " @ ", ToString(worker)));
}

absl::Status CancelledWait(bool is_deferred) {
  return MakeDerived(absl::CancelledError(is_deferred ? "RecvLocalAsync is cancelled."
                                                      : "RecvFromRemoteAsync is cancelled."));
}

// Errors of a fetch name what was fetched, whatever the protocol.
absl::Status WithKey(const absl::Status& why, int64_t step_id, const RendezvousKey& key) {
  const std::string text = BoundedName(key.text());
  if (absl::StrContains(why.message(), text) || absl::IsCancelled(why)) return why;
  return absl::Status(why.code(),
                      absl::StrCat(why.message(), "; step ", step_id, " needed ", text));
}

}  // namespace

RemoteRendezvous::RemoteRendezvous(int64_t step_id, const Clock& clock, RendezvousLimits limits,
                                   RemoteFetcher& fetcher, const OutstandingOperations::Wake* wake)
    : step_id_(step_id),
      clock_(clock),
      limits_(limits),
      fetcher_(fetcher),
      eager_(fetcher.eager_links()),
      operations_(OutstandingOperations::Create(wake)),
      local_(clock, limits, operations_.get()) {}

// Fetches and cancellations hold weak references, so every waiting receive must be ended here.
RemoteRendezvous::~RemoteRendezvous() {
  size_t count = 0;
  EndAll([](const Waiting&) { return absl::CancelledError("the step's rendezvous is deleted"); },
         count);
}

absl::Status RemoteRendezvous::Initialize(const TaskName& worker) {
  {
    SpinLockHolder lock(&mu_);
    if (worker_.has_value()) {
      if (worker_->name == worker) return absl::OkStatus();
      return absl::InternalError(absl::StrCat("Double init! Worker names would have changed!: ",
                                              ToString(worker_->name), " -> ", ToString(worker)));
    }
    worker_.emplace(worker);
    known_worker_.store(&*worker_, std::memory_order_release);
  }
  // In order: values of one key go to the first receive. Receives that arrive meanwhile, from
  // another thread or a callback, are deferred too, behind those.
  for (;;) {
    std::vector<WaitingPtr> deferred;
    {
      SpinLockHolder lock(&mu_);
      for (Waiting* each = first_; each != nullptr; each = each->after) {
        if (each->is_deferred) deferred.push_back(each->self);
      }
      if (deferred.empty()) {
        serving_worker_.store(&*worker_, std::memory_order_release);
        break;
      }
    }
    for (const WaitingPtr& each : deferred) {
      if (!Take(*each)) continue;
      if (each->token != CancellationToken::kNoCallback &&
          !each->args.cancellation->Deregister(each->token)) {
        // Cancelled meanwhile; its callback found nothing.
        std::move(each->done)(CancelledWait(/*is_deferred=*/true), {});
        continue;
      }
      RecvHere(each->key, *this->worker(), std::move(each->args), std::move(each->done));
    }
  }
  // Those to which a value was offered meanwhile.
  for (EagerSendLink* const send_link : SendLinks()) send_link->OnStepServing(step_id_);
  return absl::OkStatus();
}

absl::Status RemoteRendezvous::CheckSend(const RendezvousKey& key, const Tensor& tensor) const {
  const Worker* const here = worker();
  if (here == nullptr) return absl::InternalError("Send called before initialization.");
  if (!here->Is(key.src().task, key.src_worker())) return NotHere("src", key, here->name);
  FERRY_LOG_DEBUG(kRendezvous, "send posted: peer={} step={} bytes={} key={}", key.dst().task.task,
                  step_id_, tensor.bytes(), absl::CEscape(key.text()));
  return absl::OkStatus();
}

absl::Status RemoteRendezvous::Send(const RendezvousKey& key, Tensor tensor, bool is_dead,
                                    SendArgs args) {
  if (absl::Status status = CheckSend(key, tensor); !status.ok()) return status;
  if (CannotBeEager(key)) return local_.Send(key, std::move(tensor), is_dead, std::move(args));
  if (!is_dead && args.device_context == nullptr && SendAtOnce(key, tensor)) {
    return absl::OkStatus();
  }
  // Looked up with the lock held: values queued before the link is connected are found by it.
  EagerSendLink* send_link = nullptr;
  const absl::Status status = local_.SendOrDivert(
      key, std::move(tensor), is_dead, std::move(args),
      [&](const Tensor& value, const SendArgs& send_args, bool is_behind_another) {
        send_link = eager_->SendLinkFor(key);
        return send_link != nullptr &&
               send_link->TrySend({.step = *this,
                                   .key = key,
                                   .tensor = value,
                                   .args = send_args,
                                   .is_dead = is_dead,
                                   .is_behind_another = is_behind_another,
                                   .is_step_serving = ServingWorker() != nullptr});
      });
  if (send_link != nullptr) send_link->AfterSend();
  return status;
}

bool RemoteRendezvous::SendAtOnce(const RendezvousKey& key, Tensor& tensor) {
  EagerSendLink* const send_link = eager_->SendLinkFor(key);
  if (send_link == nullptr || ServingWorker() == nullptr) return false;
  SendItem item = {.key = &key, .tensor = std::move(tensor)};
  SendItem* const items[] = {&item};
  const uint64_t push_count = send_link->push_count();
  const size_t sent = local_.DivertMany(items, [&](size_t) {
    return send_link->TrySendMany(*this, items, push_count, /*more_follow=*/false);
  });
  if (sent == 0) {
    tensor = std::move(item.tensor);
    return false;
  }
  send_link->AfterSend();
  return true;
}

void RemoteRendezvous::SendMany(absl::Span<SendItem> items) {
  absl::InlinedVector<SendItem*, LocalRendezvous::kInlinedBatch> valid;
  valid.reserve(items.size());
  for (SendItem& item : items) {
    item.status = CheckSend(*item.key, item.tensor);
    if (item.status.ok()) valid.push_back(&item);
  }
  absl::Span<SendItem* const> rest = valid;
  absl::InlinedVector<EagerSendLink*, 4> send_links;
  if (eager_ != nullptr && ServingWorker() != nullptr) {
    while (!rest.empty()) {
      const size_t sent = SendBurst(rest, send_links);
      rest.remove_prefix(sent);
      if (sent == 0) break;
    }
  }
  if (!rest.empty()) SendManyQueued(rest, send_links);
  for (EagerSendLink* const send_link : send_links) send_link->AfterSend();
}

size_t RemoteRendezvous::SendBurst(absl::Span<SendItem* const> items,
                                   absl::InlinedVector<EagerSendLink*, 4>& send_links) {
  const auto link_of = [this](const RendezvousKey& key) {
    return CannotBeEager(key) ? nullptr : eager_->SendLinkFor(key);
  };
  EagerSendLink* const send_link = link_of(*items[0]->key);
  if (send_link == nullptr) return 0;
  size_t count = 1;
  while (count < items.size() && link_of(*items[count]->key) == send_link) ++count;
  if (std::find(send_links.begin(), send_links.end(), send_link) == send_links.end()) {
    send_links.push_back(send_link);
  }
  const uint64_t push_count = send_link->push_count();
  return local_.DivertMany(items.subspan(0, count), [&](size_t most) {
    return send_link->TrySendMany(*this, items.subspan(0, most), push_count, /*more_follow=*/true);
  });
}

void RemoteRendezvous::SendManyQueued(absl::Span<SendItem* const> items,
                                      absl::InlinedVector<EagerSendLink*, 4>& send_links) {
  absl::InlinedVector<LocalRendezvous::SendEntry, LocalRendezvous::kInlinedBatch> entries;
  entries.reserve(items.size());
  for (SendItem* const item : items) entries.push_back({.item = item});
  const SendArgs args;
  local_.SendManyOrDivert(
      absl::MakeSpan(entries),
      [&](const SendItem& item, bool is_behind_another) {
        if (CannotBeEager(*item.key)) return false;
        EagerSendLink* const send_link = eager_->SendLinkFor(*item.key);
        if (send_link == nullptr) return false;
        if (std::find(send_links.begin(), send_links.end(), send_link) == send_links.end()) {
          send_links.push_back(send_link);
        }
        return send_link->TrySend({.step = *this,
                                   .key = *item.key,
                                   .tensor = item.tensor,
                                   .args = args,
                                   .is_behind_another = is_behind_another,
                                   .is_step_serving = ServingWorker() != nullptr,
                                   .more_follow = true});
      },
      [&send_links] {
        for (EagerSendLink* const send_link : send_links) send_link->AfterSend();
        send_links.clear();
      });
}

absl::Status RemoteRendezvous::CheckRecv(const RendezvousKey& key) const {
  FERRY_RETURN_IF_ERROR(abort_status());
  const Worker* const here = worker();
  // TensorFlow's text.
  if (here == nullptr) return absl::InternalError("ValidateDevices called before initialization.");
  if (!here->Is(key.dst().task, key.dst_worker())) return NotHere("dst", key, here->name);
  return absl::OkStatus();
}

EagerRecvLink* RemoteRendezvous::RecvLinkFor(const RendezvousKey& key) const {
  FERRY_LOG_DEBUG(kRendezvous, "receive posted: peer={} step={} key={}", key.src().task.task,
                  step_id_, absl::CEscape(key.text()));
  return eager_ == nullptr ? nullptr : eager_->RecvLinkFor(key);
}

void RemoteRendezvous::RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  if (absl::Status status = CheckRecv(key); !status.ok()) {
    return std::move(done)(std::move(status), {});
  }
  if (worker()->Is(key.src().task, key.src_worker())) {
    return local_.RecvAsync(key, std::move(args), std::move(done));
  }
  EagerRecvLink* const recv_link = RecvLinkFor(key);
  if (recv_link != nullptr) return RecvEager(*recv_link, key, std::move(args), std::move(done));
  FetchRemote(key, std::move(args), std::move(done));
}

void RemoteRendezvous::RecvMany(absl::Span<RecvItem> items) {
  // A callback may drop the last other reference.
  const std::shared_ptr<RemoteRendezvous> self = weak_from_this().lock();
  // Not all at once, since values that arrive meanwhile wait for the same locks.
  while (items.size() > LocalRendezvous::kInlinedBatch) {
    RecvSome(items.subspan(0, LocalRendezvous::kInlinedBatch));
    items.remove_prefix(LocalRendezvous::kInlinedBatch);
  }
  RecvSome(items);
}

void RemoteRendezvous::RecvSome(absl::Span<RecvItem> items) {
  if (items.size() == 1) {
    return RecvAsync(*items[0].key, std::move(items[0].args), std::move(items[0].done));
  }
  absl::InlinedVector<LocalRendezvous::RecvEntry, LocalRendezvous::kInlinedBatch> entries;
  absl::InlinedVector<EagerRecvLink*, LocalRendezvous::kInlinedBatch> recv_links;
  // With the status that they fail with.
  absl::InlinedVector<std::pair<RecvItem*, absl::Status>, LocalRendezvous::kInlinedBatch> others;
  entries.reserve(items.size());
  recv_links.reserve(items.size());
  for (RecvItem& item : items) {
    const RendezvousKey& key = *item.key;
    absl::Status status = CheckRecv(key);
    const bool is_remote = status.ok() && !worker()->Is(key.src().task, key.src_worker());
    EagerRecvLink* const recv_link = is_remote ? RecvLinkFor(key) : nullptr;
    if (recv_link == nullptr) {
      others.emplace_back(&item, std::move(status));
    } else {
      entries.push_back({.item = &item});
      recv_links.push_back(recv_link);
    }
  }
  if (!entries.empty()) RecvManyEager(absl::MakeSpan(entries), recv_links);
  for (auto& [item, status] : others) {
    if (status.ok()) {
      RecvAsync(*item->key, std::move(item->args), std::move(item->done));
    } else {
      std::move(item->done)(std::move(status), {});
    }
  }
}

void RemoteRendezvous::RecvManyEager(absl::Span<LocalRendezvous::RecvEntry> entries,
                                     absl::Span<EagerRecvLink* const> recv_links) {
  ArrivalTable* const arrivals = Arrivals();
  if (arrivals == nullptr) {
    for (const auto& entry : entries) std::move(entry.item->done)(abort_status(), {});
    return;
  }
  size_t longest = 0;
  for (const auto& entry : entries) longest = std::max(longest, entry.item->key->text().size());
  const auto after = [recv_links] {
    EagerRecvLink* last = nullptr;
    for (EagerRecvLink* const recv_link : recv_links) {
      if (recv_link != last) recv_link->AfterReceive();
      last = recv_link;
    }
  };
  const bool is_posted = arrivals->Post(entries, [&] {
    EagerRecvLink* last = nullptr;
    for (EagerRecvLink* const recv_link : recv_links) {
      if (recv_link != last && !recv_link->MayWait(*this, longest)) return false;
      last = recv_link;
    }
    return true;
  });
  if (is_posted) return after();
  const auto link_of = [&](const LocalRendezvous::RecvEntry& entry) -> EagerRecvLink& {
    return *recv_links[static_cast<size_t>(&entry - entries.data())];
  };
  arrivals->RecvManyOrDivert(
      entries,
      [&](LocalRendezvous::RecvEntry& entry, Tensor& tensor, SendArgs& args) {
        return link_of(entry).OnTaken(tensor, args, entry.item->args);
      },
      [&](LocalRendezvous::RecvEntry& entry, LocalRendezvous::TakeEarlier take_earlier) {
        RecvItem& item = *entry.item;
        EagerRecvLink& recv_link = link_of(entry);
        switch (recv_link.OnReceive(*this, *item.key, entry.status)) {
          case EagerRecvLink::Route::kWait:
            return false;
          case EagerRecvLink::Route::kFail:
            return true;
          case EagerRecvLink::Route::kRequest:
            break;
        }
        QueueEarlier(take_earlier, recv_link);
        QueueReceive(*item.key, std::move(item.args), std::move(item.done), recv_link);
        return true;
      },
      [&] {
        if (unissued_.load(std::memory_order_acquire) != 0) IssueRequests();
        after();
      });
}

ArrivalTable* RemoteRendezvous::Arrivals() {
  if (ArrivalTable* const made = ArrivalsIfAny(); made != nullptr) return made;
  SpinLockHolder lock(&mu_);
  if (owned_arrivals_ == nullptr && abort_status_.ok()) {
    owned_arrivals_ = std::make_unique<ArrivalTable>(clock_, limits_);
    arrivals_.store(owned_arrivals_.get(), std::memory_order_release);
  }
  return owned_arrivals_.get();
}

void RemoteRendezvous::RecvEager(EagerRecvLink& recv_link, const RendezvousKey& key,
                                 RecvArgs&& args, RecvCallback&& done) {
  ArrivalTable* const arrivals = Arrivals();
  if (arrivals == nullptr) return std::move(done)(abort_status(), {});
  RecvItem item = {.key = &key, .args = std::move(args), .done = std::move(done)};
  LocalRendezvous::RecvEntry entry = {.item = &item};
  const bool is_posted = arrivals->Post(
      absl::MakeSpan(&entry, 1), [&] { return recv_link.MayWait(*this, key.text().size()); });
  if (is_posted) return recv_link.AfterReceive();
  absl::Status why;
  bool is_queued = false;
  const bool is_accepted = arrivals->RecvOrDivert(
      key, item.args, item.done,
      [&recv_link](Tensor& tensor, SendArgs& send_args, const RecvArgs& recv_args) {
        return recv_link.OnTaken(tensor, send_args, recv_args);
      },
      [&](LocalRendezvous::TakeEarlier take_earlier) {
        switch (recv_link.OnReceive(*this, key, why)) {
          case EagerRecvLink::Route::kWait:
            return false;
          case EagerRecvLink::Route::kFail:
            return true;
          case EagerRecvLink::Route::kRequest:
            break;
        }
        QueueEarlier(take_earlier, recv_link);
        is_queued = unissued_.load(std::memory_order_acquire) != 0;
        if (is_queued) QueueReceive(key, std::move(item.args), std::move(item.done), recv_link);
        return true;
      });
  if (is_accepted) return recv_link.AfterReceive();
  if (!why.ok()) return std::move(item.done)(std::move(why), {});
  if (is_queued) return IssueRequests();
  FetchRemote(key, std::move(item.args), std::move(item.done));
  recv_link.OnRequested();
}

void RemoteRendezvous::QueueEarlier(LocalRendezvous::TakeEarlier take_earlier,
                                    EagerRecvLink& recv_link) {
  while (LocalRendezvous::ItemPtr earlier = take_earlier()) {
    recv_link.OnConverted(earlier->key);
    QueueRequest(std::move(earlier), recv_link);
  }
}

void RemoteRendezvous::QueueReceive(const RendezvousKey& key, RecvArgs&& args, RecvCallback&& done,
                                    EagerRecvLink& recv_link) {
  QueueRequest(std::make_unique<RendezvousItem>(key, clock_.CoarseNanos(), 0, std::move(args),
                                                std::move(done), CancellationToken::kNoCallback),
               recv_link);
}

void RemoteRendezvous::QueueRequest(LocalRendezvous::ItemPtr receive, EagerRecvLink& recv_link) {
  unissued_.fetch_add(1, std::memory_order_relaxed);
  SpinLockHolder lock(&mu_);
  requests_.push_back({std::move(receive), &recv_link});
}

void RemoteRendezvous::IssueRequests() {
  // A callback may drop the last other reference.
  const std::shared_ptr<RemoteRendezvous> self = shared_from_this();
  while (true) {
    std::vector<Request> requests;
    {
      SpinLockHolder lock(&mu_);
      if (is_issuing_ || requests_.empty()) return;
      is_issuing_ = true;
      requests.swap(requests_);
    }
    for (Request& request : requests) {
      RendezvousItem::Receive& receive = request.receive->receive;
      if (receive.token != CancellationToken::kNoCallback &&
          !receive.args.cancellation->Deregister(receive.token)) {
        // Cancelled meanwhile; its callback found nothing.
        std::move(receive.done)(CancelledWait(/*is_deferred=*/false), {});
      } else {
        FetchRemote(request.receive->key, std::move(receive.args), std::move(receive.done));
      }
      unissued_.fetch_sub(1, std::memory_order_release);
      request.recv_link->OnRequested();
    }
    SpinLockHolder lock(&mu_);
    is_issuing_ = false;
  }
}

void RemoteRendezvous::RequestWaiting(EagerRecvLink& recv_link,
                                      absl::FunctionRef<bool(const RendezvousKey&)> matches) {
  ArrivalTable* const arrivals = ArrivalsIfAny();
  if (arrivals == nullptr) return;
  arrivals->TakeReceives(matches, [&](LocalRendezvous::ItemPtr receive) {
    recv_link.OnConverted(receive->key);
    QueueRequest(std::move(receive), recv_link);
  });
  IssueRequests();
}

void RemoteRendezvous::EndWaiting(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict) {
  ArrivalTable* const arrivals = ArrivalsIfAny();
  if (arrivals == nullptr) return;
  arrivals->FailReceives([&](const RendezvousKey& key) {
    absl::Status status = verdict(key);
    return status.ok() ? status : WithKey(status, step_id_, key);
  });
}

void RemoteRendezvous::DropArrivals(absl::FunctionRef<bool(const RendezvousKey&)> matches) {
  ArrivalTable* const arrivals = ArrivalsIfAny();
  if (arrivals == nullptr) return;
  arrivals->DropSends(matches);
}

bool RemoteRendezvous::is_unused() const {
  if (worker() != nullptr || local_.waiting_count() != 0) return false;
  const ArrivalTable* const arrivals = ArrivalsIfAny();
  if (arrivals != nullptr && arrivals->waiting_count() != 0) return false;
  SpinLockHolder lock(&mu_);
  return first_ == nullptr && abort_status_.ok();
}

absl::Status RemoteRendezvous::Arrive(const RendezvousKey& key, bool is_dead,
                                      LocalRendezvous::IncomingValue& value) {
  ArrivalTable* const arrivals = Arrivals();
  return arrivals == nullptr ? abort_status() : arrivals->Arrive(key, is_dead, value);
}

void RemoteRendezvous::ArriveMany(absl::Span<LocalRendezvous::ArrivalItem> items,
                                  absl::FunctionRef<void()> settle) {
  ArrivalTable* const arrivals = Arrivals();
  if (arrivals != nullptr) return arrivals->ArriveMany(items, settle);
  for (LocalRendezvous::ArrivalItem& item : items) item.status = abort_status();
  settle();
}

size_t RemoteRendezvous::TakePosted(size_t max_count, ArrivalTable::MatchPosted match,
                                    ArrivalTable::ItemPtr* taken) {
  ArrivalTable* const arrivals = ArrivalsIfAny();
  return arrivals == nullptr ? 0 : arrivals->TakePosted(max_count, match, taken);
}

std::optional<RendezvousKey> RemoteRendezvous::FindArrivalKey(absl::string_view text) const {
  const ArrivalTable* const arrivals = ArrivalsIfAny();
  return arrivals == nullptr ? std::nullopt : arrivals->FindKey(text);
}

bool RemoteRendezvous::AddSendLink(EagerSendLink& send_link) {
  SpinLockHolder lock(&mu_);
  if (are_links_ended_) return false;
  if (std::find(send_links_.begin(), send_links_.end(), &send_link) == send_links_.end()) {
    send_links_.push_back(&send_link);
  }
  return true;
}

bool RemoteRendezvous::AddRecvLink(EagerRecvLink& recv_link) {
  SpinLockHolder lock(&mu_);
  if (are_links_ended_) return false;
  if (std::find(recv_links_.begin(), recv_links_.end(), &recv_link) == recv_links_.end()) {
    recv_links_.push_back(&recv_link);
  }
  return true;
}

void RemoteRendezvous::StartFlush() {
  flushes_.fetch_add(1, std::memory_order_relaxed);
  for (EagerSendLink* const send_link : SendLinks()) send_link->StartFlush(step_id_);
}

void RemoteRendezvous::EndFlush() {
  if (flushes_.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  for (EagerSendLink* const send_link : SendLinks()) send_link->EndFlush(step_id_);
}

std::vector<EagerSendLink*> RemoteRendezvous::SendLinks() const {
  SpinLockHolder lock(&mu_);
  return send_links_;
}

void RemoteRendezvous::OfferQueued(const RendezvousKey& key, EagerSendLink& send_link) {
  local_.DivertQueued(key, [&](const Tensor& tensor, const SendArgs& args, bool is_dead) {
    return send_link.TrySend({.step = *this,
                              .key = key,
                              .tensor = tensor,
                              .args = args,
                              .is_dead = is_dead,
                              .is_drained = true,
                              .is_step_serving = ServingWorker() != nullptr});
  });
}

void RemoteRendezvous::ForEachQueued(const TaskName& consumer,
                                     absl::FunctionRef<void(const RendezvousKey&)> visit) const {
  // Also those whose age is negative, after a step of the clock.
  local_.ForEachPending(-absl::InfiniteDuration(), [&](const PendingOp& op) {
    if (op.is_send && op.key.dst().task == consumer) visit(op.key);
  });
}

void RemoteRendezvous::RecvHere(const RendezvousKey& key, const Worker& here, RecvArgs args,
                                RecvCallback done) {
  if (!here.Is(key.src().task, key.src_worker())) {
    return std::move(done)(NotHere("src", key, here.name), {});
  }
  local_.RecvAsync(key, std::move(args), std::move(done));
}

void RemoteRendezvous::RecvLocalAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  if (const Worker* const here = ServingWorker(); here != nullptr) {
    return RecvHere(key, *here, std::move(args), std::move(done));
  }
  const WaitingPtr missed = std::allocate_shared<Waiting>(
      RecyclingAllocator<Waiting>(), weak_from_this(), key, std::move(args), std::move(done), true);
  if (!Add(missed)) return;
  // Initialize may have completed meanwhile, without seeing this receive.
  const Worker* const here = ServingWorker();
  if (here == nullptr || !Take(*missed)) return;
  if (missed->token != CancellationToken::kNoCallback) {
    missed->args.cancellation->Deregister(missed->token);
  }
  RecvHere(key, *here, std::move(missed->args), std::move(missed->done));
}

void RemoteRendezvous::FetchRemote(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  RecvArgs asked = args;
  asked.cancellation = nullptr;
  WaitingPtr waiting =
      std::allocate_shared<Waiting>(RecyclingAllocator<Waiting>(), weak_from_this(), key,
                                    std::move(args), std::move(done), false);
  if (!Add(waiting)) return;
  std::shared_ptr<RemoteFetch> fetch =
      fetcher_.Fetch(step_id_, key, asked, [waiting](absl::Status status, Received received) {
        if (const auto rendezvous = waiting->owner.lock(); rendezvous != nullptr) {
          if (!status.ok()) status = WithKey(status, rendezvous->step_id_, waiting->key);
          rendezvous->End(*waiting, std::move(status), std::move(received));
        }
      });
  {
    SpinLockHolder lock(&mu_);
    if (waiting->self != nullptr) {
      waiting->fetch = std::move(fetch);
      return;
    }
  }
  // Already served, or ended while the fetch was being issued and could not be cancelled.
  if (fetch != nullptr) fetch->Cancel();
}

bool RemoteRendezvous::Add(const WaitingPtr& waiting) {
  waiting->since = clock_.CoarseNow();
  absl::Status status;
  {
    SpinLockHolder lock(&mu_);
    status = abort_status_;
    if (CancellationToken* const cancellation = waiting->args.cancellation;
        status.ok() && cancellation != nullptr) {
      waiting->token = cancellation->Register([waiting = waiting] {
        if (const auto rendezvous = waiting->owner.lock(); rendezvous != nullptr) {
          rendezvous->End(*waiting, CancelledWait(waiting->is_deferred), {});
        }
      });
      if (waiting->token == CancellationToken::kNoCallback)
        status = CancelledWait(waiting->is_deferred);
    }
    if (status.ok() && waiting_count_ >= limits_.max_pending_ops && !waiting->key.is_step_end()) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          limits_.max_pending_ops, " receives of step ", step_id_,
          waiting->is_deferred ? " wait for it to begin here" : " wait for other workers",
          ", the limit (raise --max-pending-ops, or wait for some of them first)"));
    }
    if (status.ok()) {
      waiting->self = waiting;
      waiting->before = last_;
      (last_ == nullptr ? first_ : last_->after) = waiting.get();
      last_ = waiting.get();
      ++waiting_count_;
      return true;
    }
  }
  if (waiting->token != CancellationToken::kNoCallback) {
    waiting->args.cancellation->Deregister(waiting->token);
  }
  std::move(waiting->done)(std::move(status), {});
  return false;
}

RemoteRendezvous::WaitingPtr RemoteRendezvous::Unlink(Waiting& waiting) {
  (waiting.before == nullptr ? first_ : waiting.before->after) = waiting.after;
  (waiting.after == nullptr ? last_ : waiting.after->before) = waiting.before;
  waiting.before = waiting.after = nullptr;
  --waiting_count_;
  return std::move(waiting.self);
}

bool RemoteRendezvous::Take(Waiting& waiting) {
  // The caller holds a reference too, so this does not destroy it.
  WaitingPtr self;
  SpinLockHolder lock(&mu_);
  if (waiting.self == nullptr) return false;
  self = Unlink(waiting);
  return true;
}

void RemoteRendezvous::End(Waiting& waiting, absl::Status&& status, Received&& received) {
  if (Take(waiting)) Complete(waiting, std::move(status), std::move(received));
}

void RemoteRendezvous::Complete(Waiting& waiting, absl::Status&& status, Received&& received) {
  if (waiting.token != CancellationToken::kNoCallback) {
    waiting.args.cancellation->Deregister(waiting.token);
  }
  // The fetch's callback may keep this object alive for any time.
  const std::shared_ptr<RemoteFetch> fetch = std::move(waiting.fetch);
  if (!status.ok() && fetch != nullptr) fetch->Cancel();
  received.recv_args = std::move(waiting.args);
  RecvCallback done = std::move(waiting.done);
  std::move(done)(std::move(status), std::move(received));
}

void RemoteRendezvous::EndAll(absl::FunctionRef<absl::Status(const Waiting&)> verdict,
                              size_t& count, bool with_phase) {
  std::vector<std::pair<WaitingPtr, absl::Status>> ended;
  {
    SpinLockHolder lock(&mu_);
    for (Waiting* each = first_; each != nullptr;) {
      Waiting* const after = each->after;
      absl::Status status = verdict(*each);
      if (!status.ok()) ended.emplace_back(Unlink(*each), std::move(status));
      each = after;
    }
  }
  count += ended.size();
  for (auto& [waiting, status] : ended) {
    if (with_phase && waiting->fetch != nullptr) {
      status = absl::Status(status.code(),
                            absl::StrCat(status.message(), ": ", waiting->fetch->Phase()));
    }
    Complete(*waiting, std::move(status), {});
  }
}

void RemoteRendezvous::StartAbort(const absl::Status& why) {
  EndStep(why, /*may_begin_again=*/false);
}

void RemoteRendezvous::Discard() {
  EndStep(absl::AbortedError(absl::StrCat("step ", step_id_, " was not opened here")),
          /*may_begin_again=*/true);
}

void RemoteRendezvous::EndStep(const absl::Status& why, bool may_begin_again) {
  FERRY_CHECK(!why.ok());
  // Callers receive a derived error, whatever its code: the caller of StartAbort reports the cause.
  const absl::Status status = MakeDerived(why);
  bool has_untaken = false;
  local_.ForEachPending(absl::ZeroDuration(),
                        [&has_untaken](const PendingOp& op) { has_untaken |= op.is_send; });
  {
    SpinLockHolder lock(&mu_);
    if (!abort_status_.ok()) return;
    abort_status_ = status;
    if (has_untaken && send_status_.ok()) send_status_ = why;
  }
  local_.StartAbort(status);
  if (ArrivalTable* const arrivals = ArrivalsIfAny(); arrivals != nullptr) {
    arrivals->StartAbort(status);
  }
  size_t count = 0;
  EndAll([&status](const Waiting&) { return absl::Status(status); }, count);
  // From here on no link gets new state for this step.
  std::vector<EagerSendLink*> send_links;
  std::vector<EagerRecvLink*> recv_links;
  {
    SpinLockHolder lock(&mu_);
    are_links_ended_ = true;
    send_links.swap(send_links_);
    recv_links.swap(recv_links_);
  }
  for (EagerSendLink* const send_link : send_links) send_link->OnStepEnd(*this, why);
  for (EagerRecvLink* const recv_link : recv_links) recv_link->OnStepEnd(step_id_, may_begin_again);
}

size_t RemoteRendezvous::FailTask(const TaskName& task, const absl::Status& why) {
  const auto verdict = [&](const RendezvousKey& key) {
    if (!(key.src().task == task) && !(key.dst().task == task)) return absl::OkStatus();
    // It ends with the task's control channel, and the step goes on for a successor of the task.
    if (key.is_step_end()) return absl::OkStatus();
    return absl::Status(why.code(), absl::StrCat(why.message(), "; step ", step_id_, " needed ",
                                                 BoundedName(key.text())));
  };
  absl::Status lost;
  local_.ForEachPending(absl::ZeroDuration(), [&](const PendingOp& op) {
    if (op.is_send && lost.ok()) lost = verdict(op.key);
  });
  if (!lost.ok()) {
    SpinLockHolder lock(&mu_);
    if (send_status_.ok()) send_status_ = std::move(lost);
  }
  size_t count = local_.Fail(verdict);
  if (ArrivalTable* const arrivals = ArrivalsIfAny(); arrivals != nullptr) {
    // A value that has arrived may be from a successor of the task, which will not send it again.
    count += arrivals->FailReceives(verdict);
  }
  EndAll([&verdict](const Waiting& waiting) { return verdict(waiting.key); }, count);
  return count;
}

void RemoteRendezvous::RecordSendFailure(const RendezvousKey& key, const absl::Status& why) {
  FERRY_LOG_DEBUG(kRendezvous, "send failed: peer={} step={} reason={} key={}", key.dst().task.task,
                  step_id_, why, absl::CEscape(key.text()));
  RecordSendFailure(absl::Status(
      why.code(),
      absl::StrCat(why.message(), "; step ", step_id_, " was sending ", BoundedName(key.text()))));
}

void RemoteRendezvous::RecordSendFailure(const absl::Status& why) {
  SpinLockHolder lock(&mu_);
  if (send_status_.ok()) send_status_ = why;
}

absl::Status RemoteRendezvous::send_status() const {
  SpinLockHolder lock(&mu_);
  return send_status_;
}

void RemoteRendezvous::Expire() {
  local_.Expire();
  if (ArrivalTable* const arrivals = ArrivalsIfAny(); arrivals != nullptr) {
    arrivals->Expire([this](const RendezvousKey& key) {
      const EagerRecvLink* const recv_link = eager_->RecvLinkFor(key);
      // It may have been sent, and lost with a control channel.
      return absl::StrCat(BoundedName(key.text()), " has not arrived from ",
                          ToString(key.src().task), " in time", recv_link == nullptr ? "" : ": ",
                          recv_link == nullptr ? "" : recv_link->Phase());
    });
  }
  const absl::Time now = clock_.Now();
  size_t count = 0;
  EndAll(
      [&](const Waiting& waiting) {
        if (waiting.args.deadline > now) return absl::OkStatus();
        return absl::DeadlineExceededError(absl::StrCat(
            waiting.is_deferred
                ? "the step has not begun here in time to send "
                : absl::StrCat(ToString(waiting.key.src().task), " has not answered in time with "),
            BoundedName(waiting.key.text())));
      },
      count, /*with_phase=*/true);
}

absl::Time RemoteRendezvous::NextDeadline() const {
  absl::Time next = local_.NextDeadline();
  if (const ArrivalTable* const arrivals = ArrivalsIfAny(); arrivals != nullptr) {
    next = std::min(next, arrivals->NextDeadline());
  }
  SpinLockHolder lock(&mu_);
  for (const Request& each : requests_) {
    next = std::min(next, each.receive->receive.args.deadline);
  }
  // Those that are being issued are in neither list.
  if (is_issuing_) next = std::min(next, clock_.Now() + absl::Milliseconds(1));
  for (const Waiting* each = first_; each != nullptr; each = each->after) {
    next = std::min(next, each->args.deadline);
  }
  return next;
}

void RemoteRendezvous::ForEachPending(absl::Duration min_age,
                                      absl::FunctionRef<void(const PendingStepOp&)> visit) const {
  using Side = PendingStepOp::Side;
  local_.ForEachPending(min_age, [&](const PendingOp& op) {
    if (op.key.is_step_end()) return;
    visit({step_id_, op.key, op.is_send ? Side::kSend : Side::kRecv, op.bytes, op.age, ""});
  });
  if (ArrivalTable* const arrivals = ArrivalsIfAny(); arrivals != nullptr) {
    arrivals->ForEachPending(min_age, [&](const PendingOp& op) {
      // A value that has arrived is pending at its sender.
      if (op.is_send) return;
      EagerRecvLink* const recv_link = eager_->RecvLinkFor(op.key);
      visit({step_id_, op.key, Side::kFetch, 0, op.age,
             recv_link == nullptr ? "" : recv_link->Phase()});
    });
  }
  const absl::Time now = clock_.Now();
  std::vector<PendingStepOp> pending;
  std::vector<std::shared_ptr<RemoteFetch>> fetches;
  {
    SpinLockHolder lock(&mu_);
    for (const Waiting* each = first_; each != nullptr; each = each->after) {
      const absl::Duration age = now - each->since;
      if (age < min_age || each->key.is_step_end()) continue;
      pending.push_back(
          {step_id_, each->key, each->is_deferred ? Side::kDeferred : Side::kFetch, 0, age, ""});
      fetches.push_back(each->fetch);
    }
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    if (fetches[i] != nullptr) pending[i].phase = fetches[i]->Phase();
    visit(pending[i]);
  }
}

size_t RemoteRendezvous::fetch_count() const {
  SpinLockHolder lock(&mu_);
  return waiting_count_;
}

TableSizes RemoteRendezvous::InnerTableSizes() const {
  TableSizes sizes = local_.InnerTableSizes();
  if (const ArrivalTable* const arrivals = ArrivalsIfAny(); arrivals != nullptr) {
    for (const auto& [name, size] : arrivals->InnerTableSizes()) {
      sizes[absl::StrCat("arrivals.", name)] = size;
    }
  }
  SpinLockHolder lock(&mu_);
  sizes["fetches.requests"] = requests_.size();
  size_t listed = 0;
  for (const Waiting* each = first_; each != nullptr; each = each->after) ++listed;
  sizes["fetches.listed"] = listed;
  sizes["fetches.waiting"] = waiting_count_;
  return sizes;
}

}  // namespace ferry
