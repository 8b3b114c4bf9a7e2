// SPDX-License-Identifier: Apache-2.0
// TcpStore: the keys, queues and waits of one PyTorch store, with the semantics of TCPStore.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/strong_id.h"
#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/options.h"
#include "coord/core/store.h"
#include "coord/core/types.h"

namespace ferry::coord {

// A connection, as the store knows it.
using TcpStoreClient = StrongId<struct TcpStoreClientTag, uint64_t>;

// A pending WAIT or BARRIER, for status reports.
struct TcpStoreWaitInfo {
  TcpStoreClient client;
  // Waits are numbered in the order in which they began.
  uint64_t number = 0;
  // The first keys that are absent, ordered, and how many there are; of a barrier its key.
  std::vector<std::string> keys;
  size_t key_count = 0;
  bool is_barrier = false;
  // For a barrier the count that it waits for, and the present one; otherwise 0.
  int64_t world_size = 0;
  int64_t arrived = 0;
  absl::Time since;
};

// Not thread-safe. Pure: time comes from `clock`, and callbacks go to `completions`; both outlive
// it. A client has at most one pending wait. It never times out here, because the client cancels it
// or closes its connection.
//
// Keys and queues are separate name spaces, but CHECK and WAIT accept a queue with elements in
// place of a key. Upstream's server forgets some waiters of a queue, and an element that woke one
// client can be taken by another before that client's QUEUE_POP. Here each element wakes the next
// client in line, and is reserved for it until its next request, or for kReservation at most.
class TcpStore final {
 public:
  using WaitCallback = absl::AnyInvocable<void() &&>;
  static constexpr absl::Duration kReservation = absl::Seconds(5);
  // Counted in stored_bytes for each element of a queue, beside its bytes, and for each queue,
  // beside its name.
  static constexpr size_t kElementBytes = 64;

  // Limits are those of `options` that concern the store.
  TcpStore(const CoordinatorOptions& options, const Clock& clock, Completions& completions)
      : clock_(clock), completions_(completions), values_(options, completions, ids_) {}
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  //   Errors of all that store: as Store::Put. Such a request closes the connection, since the
  //   wire format has no error replies.
  absl::Status Set(absl::string_view key, std::string value);
  // Sets the keys in order; of a key that occurs twice the last value remains.
  absl::Status MultiSet(const std::vector<std::string>& keys, std::vector<std::string> values);
  absl::Status Append(absl::string_view key, absl::string_view value);
  // Stores `desired` if the value equals `expected`, or if the key is absent and `expected` empty.
  // Returns the value after the call; `expected` if the key is absent and stays so.
  absl::StatusOr<StoreValue> CompareSet(absl::string_view key, std::string expected,
                                        std::string desired);
  // Adds to a decimal number, 0 if absent, and returns the sum, which wraps.
  //   Errors: FAILED_PRECONDITION if the value is no 64-bit number.
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t increment);
  // Null if absent.
  StoreValue Get(absl::string_view key) const;
  // The number of removed keys, 0 or 1.
  int64_t Delete(absl::string_view key);
  int64_t key_count() const { return static_cast<int64_t>(values_.key_count()); }
  bool Check(const std::vector<std::string>& keys) const;

  // Returns true if each key exists or has a queue with elements. Otherwise calls `done` when each
  // has done so since; a key that is deleted again counts.
  bool Wait(TcpStoreClient client, const std::vector<std::string>& keys, WaitCallback done);
  // Adds 1 to `key`. Returns true if its number is `world_size` or more; otherwise calls `done`
  // when it is.
  //   Errors: as Add.
  absl::StatusOr<bool> Barrier(TcpStoreClient client, absl::string_view key, int64_t world_size,
                               WaitCallback done);
  // Ends the client's wait without a call of `done`, unless that is in `completions` already.
  void CancelWait(TcpStoreClient client);
  // The memory that the client's pending wait takes; 0 if there is none.
  size_t WaitBytes(TcpStoreClient client) const;
  // The client is gone, or makes another request than QUEUE_POP: releases its wait and its
  // reservation.
  void Release(TcpStoreClient client);

  //   Errors: RESOURCE_EXHAUSTED when the store is full.
  absl::Status Push(absl::string_view queue, std::string value);
  // Removes the first element and returns it, and sets `length` to the number of elements before
  // that; null if all are reserved for other clients or there is none.
  StoreValue Pop(TcpStoreClient client, absl::string_view queue, int64_t& length);
  int64_t QueueLength(absl::string_view queue) const;

  // All clients have left. They may come back, but a job that is over leaves keys that the next one
  // must not read. So the next request decides, with BeginJobIfNew, whether the store is emptied.
  void NoteAllLeft() { have_all_left_ = true; }
  bool have_all_left() const { return have_all_left_; }
  // `is_first`: the request is one of a job's first, by which a client claims what is there
  // already.
  void BeginJobIfNew(bool is_first);

  // When Advance must be called next; InfiniteFuture if nothing is reserved.
  absl::Time NextDeadline() const;
  void Advance();

  bool Contains(absl::string_view key) const { return values_.Contains(key); }
  // The entries whose keys begin with `prefix` and come behind `after`, ordered by key, until
  // `visit` returns false.
  void ForEachEntry(absl::string_view prefix, std::optional<absl::string_view> after,
                    absl::FunctionRef<bool(absl::string_view key, const StoreValue&)> visit) const {
    values_.ForEachAfter(prefix, after, visit);
  }
  size_t wait_count() const { return waits_.size(); }
  size_t stored_bytes() const { return values_.stored_bytes() + queued_bytes_; }
  // At most `max_waits` waits with numbers over `after`, the oldest first, and `max_keys` keys
  // each.
  std::vector<TcpStoreWaitInfo> Waits(uint64_t after, size_t max_waits, size_t max_keys) const;
  // "tcpstore...."
  void AddTableSizes(TableSizes& sizes) const;

 private:
  // The numbers of the waits for a key: the order in which a queue serves them.
  using Waiters = absl::btree_set<uint64_t>;
  // Waits refer to its elements, instead of copying keys that thousands of clients wait for.
  using WaitersByKey = absl::node_hash_map<std::string, Waiters>;
  struct KeyLess {
    bool operator()(const WaitersByKey::value_type* a, const WaitersByKey::value_type* b) const {
      return a->first < b->first;
    }
  };
  struct PendingWait {
    TcpStoreClient client;
    // The keys that have not existed yet; of a barrier its key.
    absl::btree_set<WaitersByKey::value_type*, KeyLess> absent;
    bool is_barrier = false;
    int64_t world_size = 0;
    // A wait for one key only may be answered by a queue's element and reserve it.
    bool may_reserve = false;
    // See WaitBytes.
    size_t bytes = 0;
    absl::Time since;
    WaitCallback done;
  };
  struct Queue {
    std::deque<StoreValue> elements;
    // The clients for which an element is reserved.
    size_t reserved = 0;
  };
  struct Reservation {
    std::string queue;
    absl::Time until;
  };
  // Returns OK if a value of `bytes` fits beside the queues.
  absl::Status CheckRoom(absl::string_view key, size_t bytes) const;
  // `key` has been set.
  void OnSet(absl::string_view key);
  // Answers clients that wait for the queue, while it has an element that is not reserved.
  void ServeQueue(absl::string_view queue);
  void AddWait(TcpStoreClient client, absl::btree_set<absl::string_view> absent, PendingWait wait);
  // The key has arrived: the wait no longer waits for it.
  void RemoveWaiter(WaitersByKey::value_type& key, uint64_t wait);
  void CompleteWait(uint64_t number);
  void Reserve(TcpStoreClient client, absl::string_view queue);
  // Returns the queue of the reservation that ends, if there was one.
  std::optional<std::string> EndReservation(TcpStoreClient client);
  bool HasFreeElement(absl::string_view queue) const;
  bool Exists(absl::string_view key) const;
  //   Errors: FAILED_PRECONDITION if there is a value that is no number.
  absl::StatusOr<int64_t> NumberAt(absl::string_view key) const;

  const Clock& clock_;
  Completions& completions_;
  WaitIds ids_;
  Store values_;
  absl::flat_hash_map<std::string, Queue> queues_;
  size_t queued_bytes_ = 0;
  // By number.
  absl::btree_map<uint64_t, PendingWait> waits_;
  absl::flat_hash_map<TcpStoreClient, uint64_t> wait_of_client_;
  WaitersByKey waiters_;
  absl::flat_hash_map<TcpStoreClient, Reservation> reservations_;
  uint64_t last_wait_ = 0;
  bool have_all_left_ = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_H_
