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
#include "absl/strings/string_view.h"
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

  struct Send {
    Tensor tensor;
    SendArgs args;
  };
  struct Receive {
    RecvArgs args;
    RecvCallback done;
    CancellationToken::CallbackId token = CancellationToken::kNoCallback;
  };

  RendezvousItem(const RendezvousKey& key, int64_t since, Tensor&& tensor, bool is_dead,
                 SendArgs&& args)
      : key(key),
        since(since),
        is_send(true),
        is_dead(is_dead),
        send{std::move(tensor), std::move(args)} {}
  RendezvousItem(const RendezvousKey& key, int64_t since, uint64_t id, RecvArgs&& args,
                 RecvCallback&& done, CancellationToken::CallbackId token)
      : key(key), id(id), since(since), receive{std::move(args), std::move(done), token} {}
  RendezvousItem(const RendezvousItem&) = delete;
  RendezvousItem& operator=(const RendezvousItem&) = delete;
  ~RendezvousItem() {
    if (is_send) {
      send.~Send();
    } else {
      receive.~Receive();
    }
  }

  size_t bytes() const { return is_send ? send.tensor.bytes() : 0; }

  RendezvousKey key;
  // For a receive that can be cancelled, or has a deadline: unique among those of its key. Else 0.
  uint64_t id = 0;
  // Nanoseconds, by Clock::CoarseNanos.
  int64_t since;
  const bool is_send = false;
  const bool is_dead = false;
  RendezvousItem* next_of_key = nullptr;
  // Set in the first item of a key only.
  RendezvousItem* last_of_key = nullptr;
  RendezvousItem* next_in_bucket = nullptr;
  // By `is_send`: an exchange constructs, moves and destroys half as much.
  union {
    Send send;
    Receive receive;
  };
};

// Constant: what a shard may hold without reading the other shards, as long as `over_share`, the
// number of shards that hold more, is 0. Shared by the shards of a table.
struct RendezvousShares {
  size_t items = 0;
  size_t bytes = 0;
  std::atomic<int>* over_share = nullptr;
};

// A hash table of waiting items, in order for each key, and the deadlines of its receives. Used by
// LocalRendezvous only. All but the two counters is guarded by `mu`; the code that every transfer
// needs is inline, since a call would be a tenth of its cost. An exchange without deadline and
// cancellation writes to the first cache line only: two threads that use different keys have most
// shards in common, and each line that both write costs as much as the rest of an exchange.
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
  static constexpr size_t kShardBits = 6;
  // In the first cache line.
  static constexpr size_t kFirstBucketBits = 2;

  RendezvousShard() = default;
  RendezvousShard(const RendezvousShard&) = delete;
  RendezvousShard& operator=(const RendezvousShard&) = delete;
  ~RendezvousShard();

  // Returns the link to the first item of the key, or to null.
  Item** Find(const RendezvousKey& key) {
    Item** link = &buckets_[(key.hash() >> kShardBits) & (bucket_count() - 1)];
    while (*link != nullptr && !((*link)->key == key)) link = &(*link)->next_in_bucket;
    return link;
  }

  // Returns the first item of the key with that text and hash; null: there is none.
  const Item* FindText(absl::string_view text, uint64_t hash) const {
    const Item* item = buckets_[(hash >> kShardBits) & (bucket_count() - 1)];
    while (item != nullptr && !(item->key.hash() == hash && item->key.text() == text)) {
      item = item->next_in_bucket;
    }
    return item;
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

  size_t send_count() const { return send_count_; }

  // From now on the shard is one of `counting`'s operations while it holds sends. Before that they
  // are counted only here, which costs other threads nothing.
  void TrackQueuedSends(OutstandingOperations& counting) {
    operations_ = &counting;
    is_tracked_ = true;
    BeginOperation();
  }
  // Call after removing a send. If it was the last, returns the counter, whose operation the caller
  // must end after releasing `mu`. Else null.
  OutstandingOperations* TakeOperation() {
    if (!is_operation_ || send_count_ > 0) return nullptr;
    is_operation_ = false;
    return operations_;
  }

  // --- The first cache line ---

  mutable SpinLock mu;
  // Written with the lock held, so without atomic read-modify-write; read by any thread.
  std::atomic<uint32_t> item_count{0};
  std::atomic<size_t> queued_bytes{0};

 private:
  uint32_t send_count_ = 0;
  uint8_t bucket_bits_ = kFirstBucketBits;
  // True if `operations_` is not null.
  bool is_tracked_ = false;
  bool is_operation_ = false;
  bool is_over_share_ = false;
  std::array<Item*, size_t{1} << kFirstBucketBits> first_buckets_ = {};
  Item** buckets_ = first_buckets_.data();

 public:
  // --- The others ---

  // Set before use.
  alignas(64) const RendezvousShares* shares = nullptr;
  uint64_t last_id = 0;
  // A heap; some entries may belong to completed receives.
  std::vector<Deadline> deadlines;

 private:
  size_t bucket_count() const { return size_t{1} << bucket_bits_; }
  void Count(const Item& item, int sign) {
    const auto add = [sign](auto& counter, auto amount) {
      counter.store(counter.load(std::memory_order_relaxed) + (sign > 0 ? amount : -amount),
                    std::memory_order_relaxed);
    };
    add(item_count, uint32_t{1});
    if (item.is_send) {
      add(queued_bytes, item.send.tensor.bytes());
      send_count_ += sign > 0 ? 1 : -1;
      if (sign > 0 && is_tracked_) BeginOperation();
    }
    const bool is_over = item_count.load(std::memory_order_relaxed) > shares->items ||
                         queued_bytes.load(std::memory_order_relaxed) > shares->bytes;
    if (is_over == is_over_share_) return;
    is_over_share_ = is_over;
    shares->over_share->fetch_add(is_over ? 1 : -1, std::memory_order_relaxed);
  }
  void BeginOperation() {
    if (is_operation_ || send_count_ == 0) return;
    is_operation_ = true;
    operations_->Begin();
  }
  void Grow();

  // Null before TrackQueuedSends.
  OutstandingOperations* operations_ = nullptr;
  // Null as long as the first buckets suffice.
  std::unique_ptr<Item*[]> more_buckets_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_RENDEZVOUS_SHARD_H_
