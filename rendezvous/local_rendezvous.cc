// SPDX-License-Identifier: Apache-2.0
// Matching of sends and receives, and their end by abort, cancellation or deadline.
#include "rendezvous/local_rendezvous.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "base/recycled.h"
#include "base/spin_lock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/blocking_recv.h"
#include "rendezvous/depth_limited_call.h"
#include "rendezvous/rendezvous_shard.h"

namespace ferry {
namespace {

constexpr size_t kShards = size_t{1} << RendezvousShard::kShardBits;

absl::Status CancelledReceive() {
  return MakeDerived(absl::CancelledError("RecvAsync is cancelled."));
}

}  // namespace

class LocalRendezvous::Core final : public std::enable_shared_from_this<Core> {
 public:
  using Shard = RendezvousShard;
  using Item = RendezvousItem;
  using ItemPtr = std::unique_ptr<Item>;

  Core(const Clock& clock, RendezvousLimits limits, OutstandingOperations* operations)
      : clock_(clock), limits_(limits), operations_(operations) {
    for (Shard& shard : shards_) {
      shard.item_share = limits.max_waiting / kShards;
      shard.byte_share = limits.max_queued_bytes / kShards;
      shard.over_share = &over_share_;
    }
  }

  absl::Status Send(const RendezvousKey& key, Tensor&& tensor, bool is_dead, SendArgs&& args);
  // Queues `done`, or calls it.
  void RecvAsync(const RendezvousKey& key, RecvArgs&& args, RecvCallback&& done);
  // Returns a value already sent, or the abort's status. False if there is neither.
  bool TryRecv(const RendezvousKey& key, RecvArgs& args, absl::Status& status, Received& received);
  // Ends the receive with `status` if it is still waiting.
  bool End(const RendezvousKey& key, uint64_t id, absl::Status status);

  void StartAbort(const absl::Status& why);
  absl::Status abort_status() const ABSL_LOCKS_EXCLUDED(abort_mu_);
  size_t Fail(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict);
  void Expire();
  absl::Time NextDeadline() const;
  void ForEachPending(absl::Duration min_age,
                      absl::FunctionRef<void(const PendingOp&)> visit) const;
  void CountSends();
  TableSizes InnerTableSizes() const;

  size_t waiting_count() const {
    size_t sum = 0;
    for (const Shard& shard : shards_) sum += shard.item_count.load(std::memory_order_relaxed);
    return sum;
  }
  size_t queued_bytes() const {
    size_t sum = 0;
    for (const Shard& shard : shards_) sum += shard.queued_bytes.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  // Cancels a receive, which may be over by then, and the table destroyed.
  struct CancelCall {
    static void* operator new(size_t bytes) { return AllocateRecycled(bytes); }
    static void operator delete(void* call, size_t bytes) { FreeRecycled(call, bytes); }

    CancelCall(std::weak_ptr<Core> core, const RendezvousKey& key, uint64_t id)
        : core(std::move(core)), key(key), id(id) {}

    void operator()() const {
      if (const std::shared_ptr<Core> table = core.lock(); table != nullptr) {
        table->End(key, id, CancelledReceive());
      }
    }

    const std::weak_ptr<Core> core;
    const RendezvousKey key;
    const uint64_t id;
  };

  Shard& ShardOf(const RendezvousKey& key) { return shards_[key.hash() & (kShards - 1)]; }

  // As TryRecv; the caller holds the shard's lock, which this releases.
  bool TakeAndUnlock(Shard& shard, Item** link, RecvArgs& args, absl::Status& status,
                     Received& received) ABSL_UNLOCK_FUNCTION(shard.mu);
  // Checks the limits for one more item. Called with the shard's lock. The limits apply to the
  // whole table, but while every shard stays within its share the others need not be read.
  // Concurrent additions may exceed the limits together.
  absl::Status Admit(const Shard& shard, size_t bytes) const;
  absl::Status AdmitBySum(size_t bytes) const;
  // `item` is a receive already removed from its shard.
  void Complete(ItemPtr item, absl::Status&& status, Received&& received);
  // `item` was removed from its shard: a receive ends with `why`, a send's value is dropped.
  void End(ItemPtr item, const absl::Status& why);
  // A value leaves the table for that receive. Called with the shard's lock, so that the next
  // reader of the table finds the operation.
  void BeginOperation(const RecvArgs& args) const {
    if (ABSL_PREDICT_FALSE(args.operation != nullptr) && operations_ != nullptr) {
      args.operation->Begin(*operations_);
    }
  }
  // Removes and returns every item that `matches`; the caller ends the receives.
  std::vector<ItemPtr> TakeAll(absl::FunctionRef<bool(const Item&)> matches, bool drops_deadlines);

  const Clock& clock_;
  const RendezvousLimits limits_;
  OutstandingOperations* const operations_;
  // Set before any shard is emptied, and read with a shard's lock held.
  std::atomic<bool> is_aborted_{false};
  mutable absl::Mutex abort_mu_;
  absl::Status abort_status_ ABSL_GUARDED_BY(abort_mu_);
  // Number of shards that exceed their share of the limits.
  std::atomic<int> over_share_{0};
  std::array<Shard, kShards> shards_;
};

absl::Status LocalRendezvous::Core::Admit(const Shard& shard, size_t bytes) const {
  const bool is_within_share =
      over_share_.load(std::memory_order_relaxed) == 0 &&
      shard.item_count.load(std::memory_order_relaxed) < shard.item_share &&
      shard.queued_bytes.load(std::memory_order_relaxed) + bytes <= shard.byte_share;
  return is_within_share ? absl::OkStatus() : AdmitBySum(bytes);
}

absl::Status LocalRendezvous::Core::AdmitBySum(size_t bytes) const {
  if (waiting_count() >= limits_.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(limits_.max_waiting,
                     " sends and receives of the step wait for their other "
                     "side, the limit (raise --max-waiting, or in programs "
                     "RendezvousLimits::max_waiting in TransferEngineOptions::rendezvous)"));
  }
  const size_t queued = queued_bytes();
  if (queued + bytes <= limits_.max_queued_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a tensor of ", bytes, " bytes was sent while ", queued,
                   " bytes of the step wait for receivers; the limit is ", limits_.max_queued_bytes,
                   " (raise --max-queued-bytes, or in programs RendezvousLimits::max_queued_bytes "
                   "in TransferEngineOptions::rendezvous)"));
}

void LocalRendezvous::Core::Complete(ItemPtr item, absl::Status&& status, Received&& received) {
  // If this fails, a concurrent cancellation finds nothing: the item was removed.
  if (item->token != CancellationToken::kNoCallback) {
    item->recv_args.cancellation->Deregister(item->token);
  }
  received.recv_args = std::move(item->recv_args);
  RecvCallback done = std::move(item->done);
  item = nullptr;
  InvokeWithDepthLimit(std::move(done), std::move(status), std::move(received));
}

void LocalRendezvous::Core::End(ItemPtr item, const absl::Status& why) {
  if (!item->is_send) Complete(std::move(item), absl::Status(why), {});
}

absl::Status LocalRendezvous::Core::Send(const RendezvousKey& key, Tensor&& tensor, bool is_dead,
                                         SendArgs&& args) {
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

bool LocalRendezvous::Core::TryRecv(const RendezvousKey& key, RecvArgs& args, absl::Status& status,
                                    Received& received) {
  Shard& shard = ShardOf(key);
  shard.mu.Lock();
  return TakeAndUnlock(shard, shard.Find(key), args, status, received);
}

bool LocalRendezvous::Core::TakeAndUnlock(Shard& shard, Item** link, RecvArgs& args,
                                          absl::Status& status, Received& received) {
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

void LocalRendezvous::Core::RecvAsync(const RendezvousKey& key, RecvArgs&& args,
                                      RecvCallback&& done) {
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
        [call = std::make_unique<CancelCall>(weak_from_this(), key, id)] { (*call)(); });
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

bool LocalRendezvous::Core::End(const RendezvousKey& key, uint64_t id, absl::Status status) {
  ItemPtr found;
  {
    Shard& shard = ShardOf(key);
    SpinLockHolder lock(&shard.mu);
    found = shard.TakeReceive(key, id);
  }
  if (found == nullptr) return false;
  Complete(std::move(found), std::move(status), {});
  return true;
}

void LocalRendezvous::Core::StartAbort(const absl::Status& why) {
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

std::vector<LocalRendezvous::Core::ItemPtr> LocalRendezvous::Core::TakeAll(
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

void LocalRendezvous::Core::CountSends() {
  if (operations_ == nullptr) return;
  for (Shard& shard : shards_) {
    SpinLockHolder lock(&shard.mu);
    shard.CountSends(*operations_);
  }
}

absl::Status LocalRendezvous::Core::abort_status() const {
  // Called for each receive of a worker.
  if (!is_aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&abort_mu_);
  return abort_status_;
}

size_t LocalRendezvous::Core::Fail(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict) {
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

void LocalRendezvous::Core::Expire() {
  const absl::Time now = clock_.Now();
  std::vector<Shard::Deadline> due;
  for (Shard& shard : shards_) {
    SpinLockHolder lock(&shard.mu);
    shard.TakeDue(now, due);
  }
  for (const Shard::Deadline& deadline : due) {
    End(deadline.key, deadline.id,
        absl::DeadlineExceededError(absl::StrCat("no node has sent ",
                                                 absl::CEscape(deadline.key.text()),
                                                 " before the receive's deadline")));
  }
}

absl::Time LocalRendezvous::Core::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Shard& shard : shards_) {
    SpinLockHolder lock(&shard.mu);
    if (!shard.deadlines.empty()) next = std::min(next, shard.deadlines.front().when);
  }
  return next;
}

void LocalRendezvous::Core::ForEachPending(absl::Duration min_age,
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

TableSizes LocalRendezvous::Core::InnerTableSizes() const {
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

LocalRendezvous::LocalRendezvous(const Clock& clock, RendezvousLimits limits,
                                 OutstandingOperations* operations)
    : core_(std::make_shared<Core>(clock, limits, operations)) {}

LocalRendezvous::~LocalRendezvous() {
  if (core_->abort_status().ok()) {
    core_->StartAbort(absl::CancelledError("LocalRendezvousImpl deleted"));
  }
}

absl::Status LocalRendezvous::Send(const RendezvousKey& key, Tensor tensor, bool is_dead,
                                   SendArgs args) {
  return core_->Send(key, std::move(tensor), is_dead, std::move(args));
}

void LocalRendezvous::RecvAsync(const RendezvousKey& key, RecvArgs args, RecvCallback done) {
  core_->RecvAsync(key, std::move(args), std::move(done));
}

absl::StatusOr<Received> LocalRendezvous::Recv(const RendezvousKey& key, absl::Duration timeout,
                                               RecvArgs args) {
  {
    absl::Status status;
    Received received;
    if (core_->TryRecv(key, args, status, received)) {
      if (!status.ok()) return status;
      return received;
    }
  }
  return RecvBlocking(
      std::move(args), timeout, /*loop=*/nullptr,
      [this, &key](RecvArgs own, RecvCallback done) {
        core_->RecvAsync(key, std::move(own), std::move(done));
      },
      [&key] {
        return absl::StrCat(" for ", absl::CEscape(key.text()), ", which no node has sent");
      });
}

void LocalRendezvous::StartAbort(const absl::Status& why) { core_->StartAbort(why); }
absl::Status LocalRendezvous::abort_status() const { return core_->abort_status(); }
size_t LocalRendezvous::Fail(absl::FunctionRef<absl::Status(const RendezvousKey&)> verdict) {
  return core_->Fail(verdict);
}
void LocalRendezvous::Expire() { core_->Expire(); }
absl::Time LocalRendezvous::NextDeadline() const { return core_->NextDeadline(); }
void LocalRendezvous::ForEachPending(absl::Duration min_age,
                                     absl::FunctionRef<void(const PendingOp&)> visit) const {
  core_->ForEachPending(min_age, visit);
}
void LocalRendezvous::CountSends() { core_->CountSends(); }
size_t LocalRendezvous::waiting_count() const { return core_->waiting_count(); }
size_t LocalRendezvous::queued_bytes() const { return core_->queued_bytes(); }
TableSizes LocalRendezvous::InnerTableSizes() const { return core_->InnerTableSizes(); }

}  // namespace ferry
