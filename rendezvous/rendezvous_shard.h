// SPDX-License-Identifier: Apache-2.0
// RendezvousShard: one of the parts of a step's table, under a lock of its own.
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

// A send or a receive that waits. The first of a key is in a bucket's chain, and the others of the
// key hang on it; all of one key are of one side.
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
  // Of a receive: unique among those of its key. 0 for a send.
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
  // Of the first of a key only.
  RendezvousItem* last_of_key = nullptr;
  RendezvousItem* next_in_bucket = nullptr;
};

// A hash table of what waits, in the order of each key, and the deadlines of its receives. Used by
// LocalRendezvous only. All but the two counters is for whoever holds `mu`; what every exchange
// needs is inline, since a call would be a tenth of what it costs.
struct alignas(64) RendezvousShard {
  using Item = RendezvousItem;
  using ItemPtr = std::unique_ptr<Item>;

  struct Deadline {
    absl::Time when;
    uint64_t id = 0;
    RendezvousKey key;
    // Of a heap whose first is the earliest.
    friend bool operator<(const Deadline& a, const Deadline& b) { return a.when > b.when; }
  };

  // The lowest bits of a key's hash choose its shard, those above its bucket.
  static constexpr size_t kShardBits = 5;
  // Enough for most steps without another allocation.
  static constexpr size_t kFirstBuckets = 8;

  RendezvousShard() { buckets_.fill(nullptr); }
  RendezvousShard(const RendezvousShard&) = delete;
  RendezvousShard& operator=(const RendezvousShard&) = delete;
  ~RendezvousShard();

  // The link to the first item of the key, or to null.
  Item** Find(const RendezvousKey& key) {
    Item** link = &bucket((key.hash() >> kShardBits) & (bucket_count() - 1));
    while (*link != nullptr && !((*link)->key == key)) link = &(*link)->next_in_bucket;
    return link;
  }

  // Takes the first item of its key, to which `link` is the link, out of the chain; the next of the
  // key takes its place.
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

  // Puts `item` behind those of its key, whose link `link` is.
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

  // Takes out the receive of that id; null if it does not wait any more.
  ItemPtr TakeReceive(const RendezvousKey& key, uint64_t id);
  // Takes out every item that `matches`, in the order of each key.
  void TakeAll(absl::FunctionRef<bool(const Item&)> matches, std::vector<ItemPtr>& taken);
  void ForEach(absl::FunctionRef<void(const Item&)> visit) const;

  // Of a receive that is about to wait.
  void AddDeadline(const Item& item);
  // Takes out those that have come; of some the receive does not wait any more.
  void TakeDue(absl::Time now, std::vector<Deadline>& due);

  // From now on the shard is one of `counting`'s operations while it holds sends. Before that they
  // are counted here alone, which costs nothing that other threads would notice.
  void CountSends(OutstandingOperations& counting) {
    operations_ = &counting;
    BeginOperation();
  }
  // After a send was taken out: what the shard was counted by, if that was the last; it is for the
  // caller to end the operation, when it has released `mu`. Else null.
  OutstandingOperations* TakeOperation() {
    if (!is_operation_ || send_count_ > 0) return nullptr;
    is_operation_ = false;
    return operations_;
  }

  mutable SpinLock mu;
  // Set before it is used: what it may hold without asking the other shards, as long as
  // `over_share`, which counts the shards that hold more, is 0.
  size_t item_share = 0;
  size_t byte_share = 0;
  std::atomic<int>* over_share = nullptr;
  // Written with the lock held, which makes them cheap; read by anybody.
  std::atomic<size_t> item_count{0};
  std::atomic<size_t> queued_bytes{0};
  uint64_t last_id = 0;
  // A heap: of receives that wait, and of some that do not any more.
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
  // Null before CountSends.
  OutstandingOperations* operations_ = nullptr;
  bool is_operation_ = false;
  bool is_over_share_ = false;
  std::array<Item*, kFirstBuckets> buckets_;
  std::vector<Item*> more_buckets_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RENDEZVOUS_SHARD_H_
