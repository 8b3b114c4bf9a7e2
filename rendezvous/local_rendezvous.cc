// SPDX-License-Identifier: Apache-2.0
// Matching of sends and receives, and their end by abort, cancellation or deadline.
#include "rendezvous/local_rendezvous.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/bounded_text.h"
#include "base/recycled.h"
#include "base/spin_lock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/blocking_recv.h"

namespace ferry {
namespace {

absl::Status CancelledReceive() {
  return MakeDerived(absl::CancelledError("RecvAsync is cancelled."));
}

// Nested calls on one thread before further ones are deferred.
constexpr int kMaxDepth = 16;

struct Calls {
  int depth;
  bool are_deferred;
};
// No constructor or destructor, so that reading it costs nothing.
thread_local constinit Calls calls = {};

std::deque<absl::AnyInvocable<void() &&>>& Deferred() {
  thread_local std::deque<absl::AnyInvocable<void() &&>> deferred;
  return deferred;
}

// Queues the call until the outermost one has returned.
void Defer(RecvCallback&& done, absl::Status&& status, Received&& received) {
  Deferred().push_back([done = std::move(done), status = std::move(status),
                        received = std::move(received)]() mutable {
    std::move(done)(std::move(status), std::move(received));
  });
  calls.are_deferred = true;
}

void CallDeferred() {
  auto& deferred = Deferred();
  // A callback may defer more.
  while (!deferred.empty()) {
    auto next = std::move(deferred.front());
    deferred.pop_front();
    std::move(next)();
  }
  calls.are_deferred = false;
}

// Calls `done` now, unless that would be the 17th nested call on this thread; then after the
// outermost of them has returned, in order of the calls: any number of callbacks that cause
// callbacks take a stack of limited depth.
void InvokeWithDepthLimit(RecvCallback&& done, absl::Status&& status, Received&& received) {
  if (calls.depth >= kMaxDepth) {
    return Defer(std::move(done), std::move(status), std::move(received));
  }
  ++calls.depth;
  std::move(done)(std::move(status), std::move(received));
  if (calls.are_deferred && calls.depth == 1) CallDeferred();
  --calls.depth;
}

// `item` is a receive already removed from its shard.
void Complete(std::unique_ptr<RendezvousItem> item, absl::Status&& status, Received&& received) {
  // If this fails, a concurrent cancellation finds nothing: the item was removed.
  if (item->token != CancellationToken::kNoCallback) {
    item->recv_args.cancellation->Deregister(item->token);
  }
  received.recv_args = std::move(item->recv_args);
  RecvCallback done = std::move(item->done);
  item = nullptr;
  InvokeWithDepthLimit(std::move(done), std::move(status), std::move(received));
}

// `item` was removed from its shard: a receive ends with `why`, a send's value is dropped.
void End(std::unique_ptr<RendezvousItem> item, const absl::Status& why) {
  if (!item->is_send) Complete(std::move(item), absl::Status(why), {});
}

}  // namespace

// The table, for cancellations, which may outlive it.
struct LocalRendezvous::Reference {
  // Lock order: this, then a shard's.
  SpinLock mu;
  // Null once the table is destroyed.
  LocalRendezvous* table ABSL_GUARDED_BY(mu) = nullptr;
};

// Cancels a receive, which may be over by then, and the table destroyed.
struct LocalRendezvous::CancelCall {
  static void* operator new(size_t bytes) { return AllocateRecycled(bytes); }
  static void operator delete(void* call, size_t bytes) { FreeRecycled(call, bytes); }

  CancelCall(std::shared_ptr<Reference> reference, const RendezvousKey& key, uint64_t id)
      : reference(std::move(reference)), key(key), id(id) {}

  void operator()() const {
    ItemPtr found;
    {
      SpinLockHolder lock(&reference->mu);
      if (reference->table != nullptr) found = reference->table->TakeReceive(key, id);
    }
    if (found != nullptr) Complete(std::move(found), CancelledReceive(), {});
  }

  const std::shared_ptr<Reference> reference;
  const RendezvousKey key;
  const uint64_t id;
};

LocalRendezvous::LocalRendezvous(const Clock& clock, RendezvousLimits limits,
                                 OutstandingOperations* operations)
    : clock_(clock),
      limits_(limits),
      operations_(operations),
      reference_(std::make_shared<Reference>()) {
  for (Shard& shard : shards_) {
    shard.item_share = limits.max_pending_ops / kShards;
    shard.byte_share = limits.max_queued_bytes / kShards;
    shard.over_share = &over_share_;
  }
  SpinLockHolder lock(&reference_->mu);
  reference_->table = this;
}

LocalRendezvous::~LocalRendezvous() {
  // TensorFlow's text.
  if (abort_status().ok()) StartAbort(absl::CancelledError("LocalRendezvousImpl deleted"));
  // No receive waits any more; cancellations that are still to come find nothing.
  SpinLockHolder lock(&reference_->mu);
  reference_->table = nullptr;
}

absl::Status LocalRendezvous::Admit(const Shard& shard, size_t bytes) const {
  const bool is_within_share =
      over_share_.load(std::memory_order_relaxed) == 0 &&
      shard.item_count.load(std::memory_order_relaxed) < shard.item_share &&
      shard.queued_bytes.load(std::memory_order_relaxed) + bytes <= shard.byte_share;
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

absl::Status LocalRendezvous::Send(const RendezvousKey& key, Tensor tensor, bool is_dead,
                                   SendArgs args) {
  Shard& shard = ShardOf(key);
  shard.mu.Lock();
  if (is_aborted_.load(std::memory_order_relaxed)) {
    shard.mu.Unlock();
    return abort_status();
  }
  Item** const link = shard.Find(key);
  if (*link != nullptr && !(*link)->is_send) {
    ItemPtr receive = shard.PopFirst(link);
    BeginOperation(receive->recv_args);
    shard.mu.Unlock();
    Complete(std::move(receive), absl::OkStatus(),
             {std::move(tensor), is_dead, std::move(args), RecvArgs()});
    return absl::OkStatus();
  }
  if (absl::Status status = Admit(shard, tensor.bytes()); !status.ok()) {
    shard.mu.Unlock();
    return status;
  }
  shard.Append(link, std::make_unique<Item>(key, clock_.CoarseNow(), std::move(tensor), is_dead,
                                            std::move(args)));
  shard.mu.Unlock();
  return absl::OkStatus();
}

bool LocalRendezvous::TryRecv(const RendezvousKey& key, RecvArgs& args, absl::Status& status,
                              Received& received) {
  Shard& shard = ShardOf(key);
  shard.mu.Lock();
  return TakeAndUnlock(shard, shard.Find(key), args, status, received);
}

bool LocalRendezvous::TakeAndUnlock(Shard& shard, Item** link, RecvArgs& args, absl::Status& status,
                                    Received& received) {
  const bool is_aborted = is_aborted_.load(std::memory_order_relaxed);
  const bool is_there = *link != nullptr && (*link)->is_send;
  const ItemPtr send = is_there && !is_aborted ? shard.PopFirst(link) : nullptr;
  if (send != nullptr) BeginOperation(args);
  OutstandingOperations* const ended = shard.TakeOperation();
  shard.mu.Unlock();
  if (ended != nullptr) ended->End();
  if (is_aborted) status = abort_status();
  if (send == nullptr) return is_aborted;
  received.tensor = std::move(send->tensor);
  received.is_dead = send->is_dead;
  received.send_args = std::move(send->send_args);
  received.recv_args = std::move(args);
  return true;
}

void LocalRendezvous::RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  absl::Status status;
  Received received;
  Shard& shard = ShardOf(key);
  shard.mu.Lock();
  Item** const link = shard.Find(key);
  if (is_aborted_.load(std::memory_order_relaxed) || (*link != nullptr && (*link)->is_send)) {
    TakeAndUnlock(shard, link, args, status, received);
    InvokeWithDepthLimit(std::move(done), std::move(status), std::move(received));
    return;
  }
  // Unique among the receives of a key, which suffices.
  const uint64_t id = ++shard.last_id;
  CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  if (CancellationToken* const cancellation = args.cancellation; cancellation != nullptr) {
    // Lock order: a shard's, then the cancellation's; it runs callbacks with none held.
    token = cancellation->Register(
        [call = std::make_unique<CancelCall>(reference_, key, id)] { (*call)(); });
    if (token == CancellationToken::kNoCallback) status = CancelledReceive();
  }
  if (status.ok()) status = Admit(shard, 0);
  if (!status.ok()) {
    shard.mu.Unlock();
    if (token != CancellationToken::kNoCallback) args.cancellation->Deregister(token);
    received.recv_args = std::move(args);
    InvokeWithDepthLimit(std::move(done), std::move(status), std::move(received));
    return;
  }
  auto item =
      std::make_unique<Item>(key, clock_.CoarseNow(), id, std::move(args), std::move(done), token);
  if (item->recv_args.deadline != absl::InfiniteFuture()) shard.AddDeadline(*item);
  shard.Append(link, std::move(item));
  shard.mu.Unlock();
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
  for (Shard& shard : shards_) {
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
  for (Shard& shard : shards_) {
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
  std::vector<ItemPtr> items =
      TakeAll([verdict](const Item& item) { return !verdict(item.key).ok(); },
              /*drops_deadlines=*/false);
  const size_t count = items.size();
  for (ItemPtr& item : items) {
    const absl::Status why = verdict(item->key);
    End(std::move(item), why);
  }
  return count;
}

void LocalRendezvous::Expire() {
  const absl::Time now = clock_.Now();
  std::vector<Shard::Deadline> due;
  for (Shard& shard : shards_) {
    SpinLockHolder lock(&shard.mu);
    shard.TakeDue(now, due);
  }
  for (const Shard::Deadline& deadline : due) {
    ItemPtr found = TakeReceive(deadline.key, deadline.id);
    if (found == nullptr) continue;
    Complete(std::move(found),
             absl::DeadlineExceededError(absl::StrCat("no node has sent ",
                                                      BoundedName(deadline.key.text()),
                                                      " before the receive's deadline")),
             {});
  }
}

absl::Time LocalRendezvous::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Shard& shard : shards_) {
    SpinLockHolder lock(&shard.mu);
    if (!shard.deadlines.empty()) next = std::min(next, shard.deadlines.front().when);
  }
  return next;
}

void LocalRendezvous::ForEachPending(absl::Duration min_age,
                                     absl::FunctionRef<void(const PendingOp&)> visit) const {
  const absl::Time now = clock_.Now();
  std::vector<PendingOp> pending;
  for (const Shard& shard : shards_) {
    SpinLockHolder lock(&shard.mu);
    shard.ForEach([&](const Item& item) {
      const absl::Duration age = now - item.since;
      if (age < min_age) return;
      pending.push_back({item.key, item.is_send, item.tensor.bytes(), age});
    });
  }
  for (const PendingOp& op : pending) visit(op);
}

TableSizes LocalRendezvous::InnerTableSizes() const {
  TableSizes sizes;
  for (const Shard& shard : shards_) {
    SpinLockHolder lock(&shard.mu);
    size_t chained = 0;
    size_t chained_bytes = 0;
    shard.ForEach([&](const Item& item) {
      ++chained;
      if (item.is_send) chained_bytes += item.tensor.bytes();
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
    absl::Status status;
    Received received;
    if (TryRecv(key, args, status, received)) {
      if (!status.ok()) return status;
      return received;
    }
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
  for (const Shard& shard : shards_) sum += shard.item_count.load(std::memory_order_relaxed);
  return sum;
}

size_t LocalRendezvous::queued_bytes() const {
  size_t sum = 0;
  for (const Shard& shard : shards_) sum += shard.queued_bytes.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace ferry
