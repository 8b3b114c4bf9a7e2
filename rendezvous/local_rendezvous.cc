// SPDX-License-Identifier: Apache-2.0
// Matching of sends and receives, and their end by abort, cancellation or deadline.
#include "rendezvous/local_rendezvous.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/bounded_text.h"
#include "base/nested_calls.h"
#include "base/spin_lock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/blocking_recv.h"

namespace ferry {
namespace {

// Calls `done`, now or deferred (NestedCall).
//   make: makes what is received. Its result is the callback's parameter itself, which would
//   otherwise be moved there, at a tenth of the cost of an exchange.
template <typename MakeReceived>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void InvokeWithDepthLimit(RecvCallback&& done,
                                                              absl::Status&& status,
                                                              const MakeReceived& make) {
  if (NestedCall::IsAtLimit()) {
    return NestedCall::Defer(
        [done = std::move(done), status = std::move(status), received = make()]() mutable {
          std::move(done)(std::move(status), std::move(received));
        });
  }
  NestedCall call;
  std::move(done)(std::move(status), make());
  call.End();
}

// `item` is a receive already removed from its shard, which the callback is part of.
void CompleteItem(std::unique_ptr<RendezvousItem> item, absl::Status&& status, Tensor&& tensor,
                  bool is_dead, SendArgs&& args, absl::string_view path) {
  RendezvousItem::Receive& receive = item->receive;
  // If this fails, a concurrent cancellation finds nothing: the item was removed.
  if (receive.token != CancellationToken::kNoCallback) {
    receive.args.cancellation->Deregister(receive.token);
  }
  InvokeWithDepthLimit(std::move(receive.done), std::move(status), [&] {
    return Received{std::move(tensor), is_dead, std::move(args), std::move(receive.args), path};
  });
}

// The receive ends without a value.
void CompleteItem(std::unique_ptr<RendezvousItem> item, absl::Status&& status) {
  CompleteItem(std::move(item), std::move(status), Tensor(), false, {}, "");
}

// `item` was removed from its shard: a receive ends with `why`, a send's value is dropped.
void End(std::unique_ptr<RendezvousItem> item, const absl::Status& why) {
  if (!item->is_send) CompleteItem(std::move(item), absl::Status(why));
}

}  // namespace

LocalRendezvous::LocalRendezvous(const Clock& clock, RendezvousLimits limits,
                                 OutstandingOperations* operations, absl::string_view path,
                                 size_t shards)
    : clock_(clock),
      limits_(limits),
      operations_(operations),
      path_(path),
      canceller_(std::make_shared<ReceiveCanceller>(
          [this](const RendezvousKey& key, uint64_t id) { return TakeReceive(key, id); })),
      shares_{limits.max_pending_ops / shards, limits.max_queued_bytes / shards, &over_share_},
      shard_mask_(shards - 1),
      shards_(new Shard[shards]) {
  for (Shard& shard : Shards()) shard.shares = &shares_;
}

LocalRendezvous::~LocalRendezvous() {
  // TensorFlow's text.
  if (abort_status().ok()) StartAbort(absl::CancelledError("LocalRendezvousImpl deleted"));
  // No receive waits any more; cancellations that are still to come find nothing.
  canceller_->Detach();
}

absl::Status LocalRendezvous::Admit(const Shard& shard, size_t bytes) const {
  const bool is_within_share =
      over_share_.load(std::memory_order_relaxed) == 0 &&
      shard.item_count.load(std::memory_order_relaxed) < shares_.items &&
      shard.queued_bytes.load(std::memory_order_relaxed) + bytes <= shares_.bytes;
  return is_within_share ? absl::OkStatus() : AdmitBySum(bytes);
}

absl::Status LocalRendezvous::AdmitBySum(size_t bytes) const {
  if (waiting_count() >= limits_.max_pending_ops) {
    return absl::ResourceExhaustedError(
        absl::StrCat(limits_.max_pending_ops,
                     " sends and receives of the step wait for their other "
                     "side, the limit (raise --max-pending-ops, or wait for some of them first)"));
  }
  const size_t queued = queued_bytes();
  if (queued + bytes <= limits_.max_queued_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a tensor of ", bytes, " bytes was sent while ", queued,
                   " bytes of the step wait for receivers; the limit is ", limits_.max_queued_bytes,
                   " (raise --max-queued-bytes, or wait until some are received)"));
}

std::optional<RendezvousKey> LocalRendezvous::FindKey(absl::string_view text) const {
  const uint64_t hash = RendezvousKey::HashOf(text);
  const Shard& shard = shards_[hash & shard_mask_];
  SpinLockHolder lock(&shard.mu);
  const Item* const found = shard.FindText(text, hash);
  return found == nullptr ? std::nullopt : std::optional(found->key);
}

template <typename Each, typename KeyOf, typename Visit>
void LocalRendezvous::ForEachByShard(absl::Span<Each> items, const KeyOf& key_of,
                                     const Visit& visit) {
  const auto shard_of = [&](const Each& item) { return key_of(item).hash() & shard_mask_; };
  // The end of each shard's items in `order`, then their begin.
  std::array<uint32_t, kMaxShards> at = {};
  for (const Each& item : items) ++at[shard_of(item)];
  uint32_t sum = 0;
  for (size_t i = 0; i <= shard_mask_; ++i) at[i] = sum += at[i];
  absl::InlinedVector<uint32_t, kInlinedBatch> order(items.size());
  for (size_t i = items.size(); i > 0; --i) {
    order[--at[shard_of(items[i - 1])]] = static_cast<uint32_t>(i - 1);
  }
  for (size_t i = 0; i < order.size();) {
    const size_t index = shard_of(items[order[i]]);
    Shard& shard = shards_[index];
    SpinLockHolder lock(&shard.mu);
    for (; i < order.size() && shard_of(items[order[i]]) == index; ++i) {
      visit(shard, items[order[i]]);
    }
  }
}

template <typename Divert>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline absl::Status LocalRendezvous::SendImpl(const RendezvousKey& key,
                                                                           Tensor&& tensor,
                                                                           bool is_dead,
                                                                           SendArgs&& args,
                                                                           const Divert& divert) {
  Shard& shard = ShardOf(key);
  shard.mu.Lock();
  if (is_aborted_.load(std::memory_order_relaxed)) {
    shard.mu.Unlock();
    return abort_status();
  }
  Item** const link = shard.Find(key);
  if (*link != nullptr && !(*link)->is_send) {
    ItemPtr receive = shard.PopFirst(link);
    BeginOperation(receive->receive.args);
    shard.mu.Unlock();
    CompleteItem(std::move(receive), absl::OkStatus(), std::move(tensor), is_dead, std::move(args),
                 path_);
    return absl::OkStatus();
  }
  if (divert(tensor, args, *link != nullptr)) {
    shard.mu.Unlock();
    return absl::OkStatus();
  }
  if (absl::Status status = Admit(shard, tensor.bytes()); !status.ok()) {
    shard.mu.Unlock();
    return status;
  }
  shard.Append(link, std::make_unique<Item>(key, clock_.CoarseNanos(), std::move(tensor), is_dead,
                                            std::move(args)));
  shard.mu.Unlock();
  return absl::OkStatus();
}

absl::Status LocalRendezvous::Send(const RendezvousKey& key, Tensor tensor, bool is_dead,
                                   SendArgs args) {
  return SendImpl(key, std::move(tensor), is_dead, std::move(args),
                  [](const Tensor&, const SendArgs&, bool) { return false; });
}

absl::Status LocalRendezvous::SendOrDivert(const RendezvousKey& key, Tensor tensor, bool is_dead,
                                           SendArgs args, DivertSend divert) {
  return SendImpl(key, std::move(tensor), is_dead, std::move(args), divert);
}

void LocalRendezvous::SendManyOrDivert(absl::Span<SendEntry> entries, DivertItem divert,
                                       absl::FunctionRef<void()> settle) {
  ForEachByShard(
      entries, [](const SendEntry& entry) -> const RendezvousKey& { return *entry.item->key; },
      [&](Shard& shard, SendEntry& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        SendItem& item = *entry.item;
        if (is_aborted_.load(std::memory_order_relaxed)) {
          item.status = abort_status();
          return;
        }
        Item** const link = shard.Find(*item.key);
        if (*link != nullptr && !(*link)->is_send) {
          entry.receive = shard.PopFirst(link);
          BeginOperation(entry.receive->receive.args);
          return;
        }
        if (divert(item, *link != nullptr)) return;
        item.status = Admit(shard, item.tensor.bytes());
        if (!item.status.ok()) return;
        shard.Append(link,
                     std::make_unique<Item>(*item.key, clock_.CoarseNanos(), std::move(item.tensor),
                                            /*is_dead=*/false, SendArgs()));
      });
  settle();
  for (SendEntry& entry : entries) {
    if (entry.receive == nullptr) continue;
    CompleteItem(std::move(entry.receive), absl::OkStatus(), std::move(entry.item->tensor),
                 /*is_dead=*/false, {}, path_);
  }
}

void LocalRendezvous::DivertQueued(
    const RendezvousKey& key,
    absl::FunctionRef<bool(const Tensor&, const SendArgs&, bool is_dead)> divert) {
  // Destroyed after the lock is released.
  std::vector<ItemPtr> sent;
  OutstandingOperations* ended = nullptr;
  {
    Shard& shard = ShardOf(key);
    SpinLockHolder lock(&shard.mu);
    Item** const link = shard.Find(key);
    while (*link != nullptr && (*link)->is_send && (*link)->key == key &&
           divert((*link)->send.tensor, (*link)->send.args, (*link)->is_dead)) {
      sent.push_back(shard.PopFirst(link));
    }
    ended = shard.TakeOperation();
  }
  if (ended != nullptr) ended->End();
}

bool LocalRendezvous::HasQueued(const RendezvousKey& key) {
  Shard& shard = ShardOf(key);
  SpinLockHolder lock(&shard.mu);
  Item** const link = shard.Find(key);
  return *link != nullptr && (*link)->is_send;
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline LocalRendezvous::ItemPtr LocalRendezvous::ArriveLocked(
    Shard& shard, const RendezvousKey& key, bool is_dead, IncomingValue& value, Tensor& tensor,
    absl::Status& status) {
  Item** const link = shard.Find(key);
  if (*link != nullptr && !(*link)->is_send) {
    // While the lock is held, since the owner of a cancelled receive's destination may reuse it.
    status = value.Match((*link)->key, (*link)->receive.args, tensor);
    return shard.PopFirst(link);
  }
  SendArgs args;
  status = value.Queue(tensor, args);
  if (status.ok()) {
    shard.Append(link, std::make_unique<Item>(key, clock_.CoarseNanos(), std::move(tensor), is_dead,
                                              std::move(args)));
  }
  return nullptr;
}

size_t LocalRendezvous::DivertMany(absl::Span<SendItem* const> items,
                                   absl::FunctionRef<size_t(size_t most)> divert) {
  const auto has_items = [this](const RendezvousKey& key) {
    Shard& shard = ShardOf(key);
    if (shard.item_count.load(std::memory_order_relaxed) == 0) return false;
    SpinLockHolder lock(&shard.mu);
    return *shard.Find(key) != nullptr;
  };
  size_t most = 0;
  while (most < items.size() && !has_items(*items[most]->key)) ++most;
  if (most == 0) return 0;
  SpinLockHolder lock(&ShardOf(*items[0]->key).mu);
  return is_aborted_.load(std::memory_order_relaxed) ? 0 : divert(most);
}

absl::Status LocalRendezvous::Arrive(const RendezvousKey& key, bool is_dead, IncomingValue& value) {
  Shard& shard = ShardOf(key);
  shard.mu.Lock();
  if (is_aborted_.load(std::memory_order_relaxed)) {
    shard.mu.Unlock();
    return abort_status();
  }
  Tensor tensor;
  absl::Status status;
  ItemPtr receive = ArriveLocked(shard, key, is_dead, value, tensor, status);
  shard.mu.Unlock();
  if (receive == nullptr) return status;
  CompleteItem(std::move(receive), std::move(status), std::move(tensor), is_dead, {}, path_);
  return absl::OkStatus();
}

void LocalRendezvous::MatchArrivals(absl::Span<ArrivalItem> items) {
  ForEachByShard(
      items, [](const ArrivalItem& item) -> const RendezvousKey& { return *item.key; },
      [this](Shard& shard, ArrivalItem& item) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        if (is_aborted_.load(std::memory_order_relaxed)) {
          item.status = abort_status();
        } else {
          item.receive =
              ArriveLocked(shard, *item.key, item.is_dead, *item.value, item.tensor, item.status);
        }
      });
}

void LocalRendezvous::CompleteArrivals(absl::Span<ArrivalItem> items, absl::string_view path) {
  for (ArrivalItem& item : items) {
    if (item.receive == nullptr) continue;
    Complete(std::move(item.receive), std::move(item.status), std::move(item.tensor), item.is_dead,
             path);
  }
}

bool LocalRendezvous::MatchArrival(ArrivalItem& item) {
  Shard& shard = ShardOf(*item.key);
  SpinLockHolder lock(&shard.mu);
  Item** const link = shard.Find(*item.key);
  if (*link == nullptr || (*link)->is_send) return false;
  item.status = item.value->Match((*link)->key, (*link)->receive.args, item.tensor);
  item.receive = shard.PopFirst(link);
  return true;
}

void LocalRendezvous::AddReceive(ItemPtr receive) {
  Shard& shard = ShardOf(receive->key);
  SpinLockHolder lock(&shard.mu);
  if (receive->receive.args.deadline != absl::InfiniteFuture()) shard.AddDeadline(*receive);
  Item** const link = shard.Find(receive->key);
  shard.Append(link, std::move(receive));
}

void LocalRendezvous::Complete(ItemPtr receive, absl::Status&& status, Tensor&& tensor,
                               bool is_dead, absl::string_view path) {
  CompleteItem(std::move(receive), std::move(status), std::move(tensor), is_dead, {}, path);
}

void LocalRendezvous::EndFailed(absl::Span<RecvEntry> entries) {
  for (RecvEntry& entry : entries) {
    if (entry.status.ok()) continue;
    InvokeWithDepthLimit(std::move(entry.item->done), std::move(entry.status), [&entry] {
      return Received{Tensor(), false, SendArgs(), std::move(entry.item->args)};
    });
  }
}

absl::Status LocalRendezvous::CancelledReceive() {
  return MakeDerived(absl::CancelledError("RecvAsync is cancelled."));
}

LocalRendezvous::ItemPtr LocalRendezvous::TakeSendAndUnlock(Shard& shard, Item** link,
                                                            const RecvArgs& args) {
  ItemPtr send = shard.PopFirst(link);
  BeginOperation(args);
  OutstandingOperations* const ended = shard.TakeOperation();
  shard.mu.Unlock();
  if (ended != nullptr) ended->End();
  return send;
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline absl::Status LocalRendezvous::AddReceive(
    Shard& shard, Item** link, const RendezvousKey& key, RecvArgs& args, RecvCallback& done,
    CancellationToken::CallbackId& token) {
  absl::Status status;
  uint64_t id = 0;
  if (args.cancellation != nullptr || args.deadline != absl::InfiniteFuture()) {
    // Unique among the receives of a key, which suffices.
    id = ++shard.last_id;
  }
  if (CancellationToken* const cancellation = args.cancellation; cancellation != nullptr) {
    // Lock order: a shard's, then the cancellation's; it runs callbacks with none held.
    token = canceller_->Register(*cancellation, key, id);
    if (token == CancellationToken::kNoCallback) status = CancelledReceive();
  }
  // One for each consumer of the step, which could not be told otherwise that it is over.
  if (status.ok() && !key.is_step_end()) status = Admit(shard, 0);
  if (!status.ok()) return status;
  auto item = std::make_unique<Item>(key, clock_.CoarseNanos(), id, std::move(args),
                                     std::move(done), token);
  if (item->receive.args.deadline != absl::InfiniteFuture()) shard.AddDeadline(*item);
  shard.Append(link, std::move(item));
  return absl::OkStatus();
}

template <typename Take, typename Divert>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool LocalRendezvous::RecvImpl(const RendezvousKey& key,
                                                                   RecvArgs& args,
                                                                   RecvCallback& done,
                                                                   const Take& take,
                                                                   const Divert& divert) {
  const auto without_value = [&args] {
    return Received{Tensor(), false, SendArgs(), std::move(args)};
  };
  Shard& shard = ShardOf(key);
  shard.mu.Lock();
  if (ABSL_PREDICT_FALSE(is_aborted_.load(std::memory_order_relaxed))) {
    shard.mu.Unlock();
    InvokeWithDepthLimit(std::move(done), abort_status(), without_value);
    return true;
  }
  Item** const link = shard.Find(key);
  if (*link != nullptr && (*link)->is_send) {
    absl::Status taken = take((*link)->send.tensor, (*link)->send.args, args);
    const ItemPtr item = TakeSendAndUnlock(shard, link, args);
    InvokeWithDepthLimit(std::move(done), std::move(taken), [&] {
      return Received{std::move(item->send.tensor), item->is_dead, std::move(item->send.args),
                      std::move(args), path_};
    });
    return true;
  }
  const auto take_earlier = [&]() -> ItemPtr {
    return *link != nullptr && (*link)->key == key ? shard.PopFirst(link) : nullptr;
  };
  if (divert(take_earlier)) {
    shard.mu.Unlock();
    return false;
  }
  CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  absl::Status status = AddReceive(shard, link, key, args, done, token);
  shard.mu.Unlock();
  if (ABSL_PREDICT_TRUE(status.ok())) return true;
  if (token != CancellationToken::kNoCallback) args.cancellation->Deregister(token);
  InvokeWithDepthLimit(std::move(done), std::move(status), without_value);
  return true;
}

void LocalRendezvous::RecvAsync(const RendezvousKey& key, RecvArgs&& args, RecvCallback&& done) {
  RecvImpl(
      key, args, done,
      [](const Tensor&, const SendArgs&, const RecvArgs&) { return absl::OkStatus(); },
      [](const auto&) { return false; });
}

bool LocalRendezvous::RecvOrDivert(const RendezvousKey& key, RecvArgs& args, RecvCallback& done,
                                   TakeValue take, absl::FunctionRef<bool(TakeEarlier)> divert) {
  return RecvImpl(key, args, done, take, divert);
}

void LocalRendezvous::RecvManyOrDivert(absl::Span<RecvEntry> entries, TakeEntry take,
                                       DivertEntry divert, absl::FunctionRef<void()> settle) {
  absl::InlinedVector<OutstandingOperations*, 4> ended;
  ForEachByShard(
      entries, [](const RecvEntry& entry) -> const RendezvousKey& { return *entry.item->key; },
      [&](Shard& shard, RecvEntry& entry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        RecvItem& item = *entry.item;
        if (is_aborted_.load(std::memory_order_relaxed)) {
          entry.status = abort_status();
          return;
        }
        Item** const link = shard.Find(*item.key);
        if (*link != nullptr && (*link)->is_send) {
          entry.status = take(entry, (*link)->send.tensor, (*link)->send.args);
          entry.send = shard.PopFirst(link);
          BeginOperation(item.args);
          if (OutstandingOperations* const each = shard.TakeOperation()) ended.push_back(each);
          return;
        }
        const auto take_earlier = [&]() -> ItemPtr {
          return *link != nullptr && (*link)->key == *item.key ? shard.PopFirst(link) : nullptr;
        };
        if (divert(entry, take_earlier)) return;
        entry.status = AddReceive(shard, link, *item.key, item.args, item.done, entry.token);
      });
  for (OutstandingOperations* const each : ended) each->End();
  settle();
  for (RecvEntry& entry : entries) {
    if (entry.send == nullptr && entry.status.ok()) continue;
    RecvArgs& args = entry.item->args;
    if (entry.token != CancellationToken::kNoCallback) args.cancellation->Deregister(entry.token);
    InvokeWithDepthLimit(std::move(entry.item->done), std::move(entry.status), [&] {
      if (entry.send == nullptr) return Received{Tensor(), false, SendArgs(), std::move(args)};
      return Received{std::move(entry.send->send.tensor), entry.send->is_dead,
                      std::move(entry.send->send.args), std::move(args), path_};
    });
  }
}

void LocalRendezvous::TakeReceives(absl::FunctionRef<bool(const RendezvousKey&)> matches,
                                   absl::FunctionRef<void(ItemPtr)> take) {
  for (Shard& shard : Shards()) {
    std::vector<ItemPtr> items;
    SpinLockHolder lock(&shard.mu);
    shard.TakeAll([&matches](const Item& item) { return !item.is_send && matches(item.key); },
                  items);
    for (ItemPtr& item : items) take(std::move(item));
  }
}

LocalRendezvous::ItemPtr LocalRendezvous::TakeReceive(const RendezvousKey& key, uint64_t id) {
  Shard& shard = ShardOf(key);
  SpinLockHolder lock(&shard.mu);
  return shard.TakeReceive(key, id);
}

void LocalRendezvous::StartAbort(const absl::Status& why) {
  FERRY_CHECK(!why.ok());
  {
    absl::MutexLock lock(&abort_mu_);
    if (!abort_status_.ok()) return;
    abort_status_ = why;
    is_aborted_.store(true, std::memory_order_release);
  }
  // An item added under a shard's lock before this is in the shard; later ones see the flag.
  std::vector<ItemPtr> items = TakeAll([](const Item&) { return true; }, /*drops_deadlines=*/true);
  for (ItemPtr& item : items) End(std::move(item), why);
}

std::vector<LocalRendezvous::ItemPtr> LocalRendezvous::TakeAll(
    absl::FunctionRef<bool(const Item&)> matches, bool drops_deadlines) {
  std::vector<ItemPtr> items;
  for (Shard& shard : Shards()) {
    OutstandingOperations* ended = nullptr;
    {
      SpinLockHolder lock(&shard.mu);
      shard.TakeAll(matches, items);
      if (drops_deadlines) shard.deadlines.clear();
      ended = shard.TakeOperation();
    }
    if (ended != nullptr) ended->End();
  }
  return items;
}

void LocalRendezvous::TrackQueuedSends() {
  if (operations_ == nullptr) return;
  for (Shard& shard : Shards()) {
    SpinLockHolder lock(&shard.mu);
    shard.TrackQueuedSends(*operations_);
  }
}

absl::Status LocalRendezvous::abort_status() const {
  // Called for each receive of a worker.
  if (!is_aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&abort_mu_);
  return abort_status_;
}

size_t LocalRendezvous::Fail(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict) {
  return FailItems(verdict, /*is_receives_only=*/false);
}

size_t LocalRendezvous::FailReceives(
    absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict) {
  return FailItems(verdict, /*is_receives_only=*/true);
}

size_t LocalRendezvous::FailItems(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict,
                                  bool is_receives_only) {
  std::vector<ItemPtr> items = TakeAll(
      [verdict, is_receives_only](const Item& item) {
        return !(is_receives_only && item.is_send) && !verdict(item.key).ok();
      },
      /*drops_deadlines=*/false);
  const size_t count = items.size();
  for (ItemPtr& item : items) {
    const absl::Status why = verdict(item->key);
    End(std::move(item), why);
  }
  return count;
}

void LocalRendezvous::DropSends(absl::FunctionRef<bool(const RendezvousKey&)> matches) {
  TakeAll([matches](const Item& item) { return item.is_send && matches(item.key); },
          /*drops_deadlines=*/false);
}

void LocalRendezvous::Expire() {
  Expire([](const RendezvousKey& key) {
    return absl::StrCat("no node has sent ", BoundedName(key.text()),
                        " before the receive's deadline");
  });
}

void LocalRendezvous::Expire(absl::FunctionRef<std::string(const RendezvousKey&)> describe) {
  const absl::Time now = clock_.Now();
  std::vector<Shard::Deadline> due;
  for (Shard& shard : Shards()) {
    SpinLockHolder lock(&shard.mu);
    shard.TakeDue(now, due);
  }
  for (const Shard::Deadline& deadline : due) {
    ItemPtr found = TakeReceive(deadline.key, deadline.id);
    if (found == nullptr) continue;
    CompleteItem(std::move(found), absl::DeadlineExceededError(describe(deadline.key)));
  }
}

absl::Time LocalRendezvous::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Shard& shard : Shards()) {
    SpinLockHolder lock(&shard.mu);
    if (!shard.deadlines.empty()) next = std::min(next, shard.deadlines.front().when);
  }
  return next;
}

void LocalRendezvous::ForEachPending(absl::Duration min_age,
                                     absl::FunctionRef<void(const PendingOp&)> visit) const {
  const absl::Time now = clock_.Now();
  std::vector<PendingOp> pending;
  for (const Shard& shard : Shards()) {
    SpinLockHolder lock(&shard.mu);
    shard.ForEach([&](const Item& item) {
      const absl::Duration age = now - absl::FromUnixNanos(item.since);
      if (age < min_age) return;
      pending.push_back({item.key, item.is_send, item.bytes(), age});
    });
  }
  for (const PendingOp& op : pending) visit(op);
}

TableSizes LocalRendezvous::InnerTableSizes() const {
  TableSizes sizes;
  for (const Shard& shard : Shards()) {
    SpinLockHolder lock(&shard.mu);
    size_t chained = 0;
    size_t chained_bytes = 0;
    shard.ForEach([&](const Item& item) {
      ++chained;
      chained_bytes += item.bytes();
    });
    sizes["table.chained"] += chained;
    sizes["table.chained_bytes"] += chained_bytes;
    sizes["table.items"] += shard.item_count.load(std::memory_order_relaxed);
    sizes["table.queued_bytes"] += shard.queued_bytes.load(std::memory_order_relaxed);
    sizes["table.deadlines"] += shard.deadlines.size();
  }
  sizes["table.shards_over_share"] = static_cast<size_t>(over_share_.load());
  return sizes;
}

absl::StatusOr<Received> LocalRendezvous::Recv(const RendezvousKey& key, absl::Duration timeout,
                                               RecvArgs args) {
  {
    Shard& shard = ShardOf(key);
    shard.mu.Lock();
    Item** const link = shard.Find(key);
    const bool is_aborted = is_aborted_.load(std::memory_order_relaxed);
    if (!is_aborted && *link != nullptr && (*link)->is_send) {
      const ItemPtr item = TakeSendAndUnlock(shard, link, args);
      return Received{std::move(item->send.tensor), item->is_dead, std::move(item->send.args),
                      std::move(args)};
    }
    shard.mu.Unlock();
    if (is_aborted) return abort_status();
  }
  return RecvBlocking(
      std::move(args), timeout, /*loop=*/nullptr,
      [this, &key](RecvArgs own, RecvCallback done) {
        RecvAsync(key, std::move(own), std::move(done));
      },
      [&key] {
        return absl::StrCat(" for ", BoundedName(key.text()), ", which no node has sent");
      });
}

size_t LocalRendezvous::waiting_count() const {
  size_t sum = 0;
  for (const Shard& shard : Shards()) sum += shard.item_count.load(std::memory_order_relaxed);
  return sum;
}

size_t LocalRendezvous::send_count() const {
  size_t sum = 0;
  for (const Shard& shard : Shards()) {
    SpinLockHolder lock(&shard.mu);
    sum += shard.send_count();
  }
  return sum;
}

size_t LocalRendezvous::queued_bytes() const {
  size_t sum = 0;
  for (const Shard& shard : Shards()) sum += shard.queued_bytes.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace ferry
