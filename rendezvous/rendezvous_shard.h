// SPDX-License-Identifier: Apache-2.0
// RendezvousShard: one part of a step's table, with a lock of its own.
#ifndef FERRY_RENDEZVOUS_RENDEZVOUS_SHARD_H_
#define FERRY_RENDEZVOUS_RENDEZVOUS_SHARD_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "base/recycled.h"
#include "base/spin_lock.h"
#include "rendezvous/key.h"
#include "rendezvous/outstanding_operations.h"
#include "rendezvous/value.h"
#include "tensor/tensor.h"

namespace ferry {

// A waiting send or receive. The first item of a key is in a bucket's chain, and the key's others
// are linked to it; all of one key are sends, or all are receives.
struct RendezvousItem {
  static void* operator new(size_t bytes) { return AllocateRecycled(bytes); }
  static void operator delete(void* item, size_t bytes) { FreeRecycled(item, bytes); }

  // A send.
  RendezvousItem(const RendezvousKey& key, absl::Time since, Tensor&& tensor, bool is_dead,
                 SendArgs&& args)
      : key(key),
        is_send(true),
        is_dead(is_dead),
        since(since),
        tensor(std::move(tensor)),
        send_args(std::move(args)) {}
  // A receive.
  RendezvousItem(const RendezvousKey& key, absl::Time since, uint64_t id, RecvArgs&& args,
                 RecvCallback&& done, CancellationToken::CallbackId token)
      : key(key),
        id(id),
        since(since),
        recv_args(std::move(args)),
        done(std::move(done)),
        token(token) {}

  RendezvousKey key;
  // For a receive: unique among those of its key. 0 for a send.
  uint64_t id = 0;
  bool is_send = false;
  bool is_dead = false;
  absl::Time since;
  Tensor tensor;
  SendArgs send_args;
  RecvArgs recv_args;
  RecvCallback done;
  CancellationToken::CallbackId token = CancellationToken::kNoCallback;

  RendezvousItem* next_of_key = nullptr;
  // Set in the first item of a key only.
  RendezvousItem* last_of_key = nullptr;
  RendezvousItem* next_in_bucket = nullptr;
};

// A hash table of waiting items, in order for each key, and the deadlines of its receives. Used by
// LocalRendezvous only. All but the two counters is guarded by `mu`; the code that every transfer
// needs is inline, since a call would be a tenth of its cost.
struct alignas(64) RendezvousShard {
  using Item = RendezvousItem;
  using ItemPtr = std::unique_ptr<Item>;

  struct Deadline {
    absl::Time when;
    uint64_t id = 0;
    RendezvousKey key;
    // For a heap with the earliest on top.
    friend bool operator<(const Deadline& a, const Deadline& b) { return a.when > b.when; }
  };

  // The lowest bits of a key's hash select its shard, those above its bucket.
  static constexpr size_t kShardBits = 5;
  // Enough for most steps without another allocation.
  static constexpr size_t kFirstBuckets = 8;

  RendezvousShard() { buckets_.fill(nullptr); }
  RendezvousShard(const RendezvousShard&) = delete;
  RendezvousShard& operator=(const RendezvousShard&) = delete;
  ~RendezvousShard();

  // Returns the link to the first item of the key, or to null.
  Item** Find(const RendezvousKey& key) {
    Item** link = &bucket((key.hash() >> kShardBits) & (bucket_count() - 1));
    while (*link != nullptr && !((*link)->key == key)) link = &(*link)->next_in_bucket;
    return link;
  }

  // Removes the first item of a key, to which `link` points, from the chain; the key's next item
  // takes its place.
  ItemPtr PopFirst(Item** link) {
    Item* const first = *link;
    Item* const next = first->next_of_key;
    if (next != nullptr) {
      next->last_of_key = first->last_of_key;
      next->next_in_bucket = first->next_in_bucket;
      *link = next;
    } else {
      *link = first->next_in_bucket;
    }
    Count(*first, -1);
    return ItemPtr(first);
  }

  // Appends `item` to those of its key, to whose first `link` points.
  void Append(Item** link, ItemPtr item) {
    Count(*item, +1);
    Item* const added = item.release();
    if (Item* const first = *link; first != nullptr) {
      first->last_of_key->next_of_key = added;
      first->last_of_key = added;
      return;
    }
    added->last_of_key = added;
    *link = added;
    if (item_count.load(std::memory_order_relaxed) > 2 * bucket_count()) Grow();
  }

  // Removes the receive with that id; null if it is no longer waiting.
  ItemPtr TakeReceive(const RendezvousKey& key, uint64_t id);
  // Removes every item that `matches`, in order for each key.
  void TakeAll(absl::FunctionRef<bool(const Item&)> matches, std::vector<ItemPtr>& taken);
  void ForEach(absl::FunctionRef<void(const Item&)> visit) const;

  // For a receive about to wait.
  void AddDeadline(const Item& item);
  // Removes those that have passed; some may belong to completed receives.
  void TakeDue(absl::Time now, std::vector<Deadline>& due);

  // From now on the shard is one of `counting`'s operations while it holds sends. Before that they
  // are counted only here, which costs other threads nothing.
  void TrackQueuedSends(OutstandingOperations& counting) {
    operations_ = &counting;
    BeginOperation();
  }
  // Call after removing a send. If it was the last, returns the counter, whose operation the caller
  // must end after releasing `mu`. Else null.
  OutstandingOperations* TakeOperation() {
    if (!is_operation_ || send_count_ > 0) return nullptr;
    is_operation_ = false;
    return operations_;
  }

  mutable SpinLock mu;
  // Set before use: what the shard may hold without reading the other shards, as long as
  // `over_share`, the number of shards that hold more, is 0.
  size_t item_share = 0;
  size_t byte_share = 0;
  std::atomic<int>* over_share = nullptr;
  // Written with the lock held, so without atomic read-modify-write; read by any thread.
  std::atomic<size_t> item_count{0};
  std::atomic<size_t> queued_bytes{0};
  uint64_t last_id = 0;
  // A heap; some entries may belong to completed receives.
  std::vector<Deadline> deadlines;

 private:
  size_t bucket_count() const {
    return more_buckets_.empty() ? kFirstBuckets : more_buckets_.size();
  }
  Item*& bucket(size_t index) {
    return more_buckets_.empty() ? buckets_[index] : more_buckets_[index];
  }
  Item* bucket(size_t index) const {
    return more_buckets_.empty() ? buckets_[index] : more_buckets_[index];
  }
  void Count(const Item& item, int sign) {
    const auto add = [sign](std::atomic<size_t>& counter, size_t amount) {
      counter.store(counter.load(std::memory_order_relaxed) + (sign > 0 ? amount : -amount),
                    std::memory_order_relaxed);
    };
    add(item_count, 1);
    if (item.is_send) {
      add(queued_bytes, item.tensor.bytes());
      send_count_ += sign > 0 ? 1 : -1;
      if (sign > 0 && operations_ != nullptr) BeginOperation();
    }
    const bool is_over = item_count.load(std::memory_order_relaxed) > item_share ||
                         queued_bytes.load(std::memory_order_relaxed) > byte_share;
    if (is_over == is_over_share_) return;
    is_over_share_ = is_over;
    over_share->fetch_add(is_over ? 1 : -1, std::memory_order_relaxed);
  }
  void BeginOperation() {
    if (is_operation_ || send_count_ == 0) return;
    is_operation_ = true;
    operations_->Begin();
  }
  void Grow();

  size_t send_count_ = 0;
  // Null before TrackQueuedSends.
  OutstandingOperations* operations_ = nullptr;
  bool is_operation_ = false;
  bool is_over_share_ = false;
  std::array<Item*, kFirstBuckets> buckets_;
  std::vector<Item*> more_buckets_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RENDEZVOUS_SHARD_H_
