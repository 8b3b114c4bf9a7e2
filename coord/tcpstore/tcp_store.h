// SPDX-License-Identifier: Apache-2.0
// TcpStore: the keys, queues and waits of one PyTorch store, with the semantics of TCPStore.
#ifndef FERRY_COORD_TCPSTORE_TCP_STORE_H_
#define FERRY_COORD_TCPSTORE_TCP_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/options.h"
#include "coord/core/store.h"
#include "coord/core/types.h"
#include "coord/tcpstore/tcp_store_state.h"

namespace ferry::coord {

// A pending WAIT or BARRIER, for status reports.
struct TcpStoreWaitInfo {
  TcpStoreClient client;
  // Waits are numbered in the order in which they began, from 1.
  uint64_t number = 0;
  // The first absent keys, in the order of the request, and the number of all of them. For a
  // barrier, its key.
  std::vector<std::string> keys;
  size_t key_count = 0;
  bool is_barrier = false;
  // An element of a queue that ends it is reserved for the client.
  bool may_reserve = false;
  // For a barrier, the count that it waits for and the current one; otherwise 0.
  int64_t world_size = 0;
  int64_t arrived = 0;
  absl::Time since;
};

// The content of a store, for its successor. Times are those of its clock.
struct TcpStoreState {
  struct Queue {
    std::string name;
    std::vector<StoreValue> elements;
  };
  struct Reservation {
    TcpStoreClient client;
    std::string queue;
    absl::Time until;
  };

  bool is_idle = false;
  std::vector<std::pair<std::string, StoreValue>> entries;
  std::vector<Queue> queues;
  std::vector<Reservation> reservations;
  // In the order in which they began, with all their absent keys.
  std::vector<TcpStoreWaitInfo> waits;
};

// Not thread-safe. Pure: time comes from `clock`, and callbacks go to `completions`; both outlive
// it. A client has at most one pending wait, which has no timeout here: clients time out by
// themselves, and then cancel the wait or close the connection.
//
// Keys and queues are separate name spaces, but CHECK and WAIT accept a queue with elements in
// place of a key. PyTorch's server fails to wake some waiters of a queue, and an element that woke
// one client can be popped by another before that client's QUEUE_POP. Here each element wakes one
// waiter, in FIFO order, and is reserved for it until its next request, or for kReservation at
// most.
class TcpStore final {
 public:
  using WaitCallback = absl::AnyInvocable<void() &&>;
  static constexpr absl::Duration kReservation = absl::Seconds(5);
  // Overhead that stored_bytes() counts for each queue element in addition to its bytes, and for
  // each queue in addition to its name.
  static constexpr size_t kElementBytes = 64;

  // Limits are those of `options` that concern the store.
  TcpStore(const CoordinatorOptions& options, const Clock& clock, Completions& completions)
      : clock_(clock), completions_(completions), values_(options, completions, ids_) {}
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  //   Errors of all methods that write: as Store::Put. Such a request closes the connection, since
  //   the wire format has no error replies.
  absl::Status Set(absl::string_view key, std::string value);
  // Sets the keys in order; for a key that occurs twice, the last value wins.
  absl::Status MultiSet(const std::vector<std::string>& keys, std::vector<std::string> values);
  absl::Status Append(absl::string_view key, absl::string_view value);
  // Stores `desired` if the value equals `expected`, or if the key is absent and `expected` is
  // empty. Returns the value after the call; `expected` if the key was absent and was not set.
  absl::StatusOr<StoreValue> CompareSet(absl::string_view key, std::string expected,
                                        std::string desired);
  // Adds to a decimal integer, 0 if absent, and returns the sum, which wraps on overflow.
  //   Errors: FAILED_PRECONDITION if the value is not a 64-bit integer.
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t increment);
  // Returns null if the key is absent.
  StoreValue Get(absl::string_view key) const;
  // Returns the number of removed keys, 0 or 1.
  int64_t Delete(absl::string_view key);
  int64_t key_count() const { return static_cast<int64_t>(values_.key_count()); }
  bool Check(const std::vector<std::string>& keys) const;

  // Returns true if every key exists or names a queue with elements. Otherwise calls `done` once
  // every missing one has existed at some time since; it may have been deleted meanwhile.
  bool Wait(TcpStoreClient client, const std::vector<std::string>& keys, WaitCallback done);
  // Adds 1 to `key`. Returns true if the result is at least `world_size`; otherwise calls `done`
  // when the value reaches it.
  //   Errors: as Add.
  absl::StatusOr<bool> Barrier(TcpStoreClient client, absl::string_view key, int64_t world_size,
                               WaitCallback done);
  // Ends the client's wait without calling `done`, unless it is queued in `completions` already.
  void CancelWait(TcpStoreClient client);
  bool IsWaiting(TcpStoreClient client) const { return wait_of_client_.contains(client); }
  // The memory that the client's pending wait takes; 0 if there is none.
  size_t WaitBytes(TcpStoreClient client) const;
  // The client has disconnected, or makes a request other than QUEUE_POP: ends its wait and its
  // reservation.
  void Release(TcpStoreClient client);

  //   Errors: RESOURCE_EXHAUSTED when the store is full.
  absl::Status Push(absl::string_view queue, std::string value);
  // Removes and returns the first element, and sets `length` to the number of elements before the
  // removal. Returns null and a length of 0 if the queue is empty or all elements are reserved for
  // other clients.
  StoreValue Pop(TcpStoreClient client, absl::string_view queue, int64_t& length);
  int64_t QueueLength(absl::string_view queue) const;

  // The last client has disconnected. The same job may reconnect and needs its keys, but a new job
  // must not read them, so the next request decides whether the store is cleared: see
  // ClearIfNewJob.
  void MarkIdle() { is_idle_ = true; }
  bool is_idle() const { return is_idle_; }
  // The first request after MarkIdle. Clears the store if `is_new_job`: the request is one with
  // which a job begins, and its key exists already.
  void ClearIfNewJob(bool is_new_job);

  // When Advance must be called next; InfiniteFuture if nothing is reserved.
  absl::Time NextDeadline() const;
  void Advance();

  bool Contains(absl::string_view key) const { return values_.Contains(key); }
  // Calls `visit` for the entries whose keys begin with `prefix` and sort after `after`, in key
  // order, until it returns false.
  void ForEachEntry(absl::string_view prefix, std::optional<absl::string_view> after,
                    absl::FunctionRef<bool(absl::string_view key, const StoreValue&)> visit) const {
    values_.ForEachAfter(prefix, after, visit);
  }
  size_t wait_count() const { return waits_.size(); }
  size_t stored_bytes() const { return values_.stored_bytes() + queued_bytes_; }
  // Returns at most `max_waits` waits with numbers greater than `after`, oldest first, with at most
  // `max_keys` keys each.
  std::vector<TcpStoreWaitInfo> Waits(uint64_t after, size_t max_waits, size_t max_keys) const;
  // Adds the sizes "tcpstore.*".
  void AddTableSizes(TableSizes& sizes) const;

  TcpStoreState Export() const;
  // Fills an empty store with the entries and queues of `state`. Then the reservations are
  // restored, and then the waits, which refer to clients of this store.
  //   Errors: as Store::Put; ALREADY_EXISTS for a queue that occurs twice.
  absl::Status Restore(const TcpStoreState& state);
  //   Errors: INVALID_ARGUMENT if the queue has no such element, or the client has a reservation.
  absl::Status RestoreReservation(TcpStoreClient client, absl::string_view queue, absl::Time until);
  // Adds a wait for the keys of `wait`, whether they exist or not, after those that exist. A
  // barrier is not counted again.
  //   Errors: INVALID_ARGUMENT if the client waits already, or the keys are not those of a wait.
  absl::Status RestoreWait(TcpStoreClient client, const TcpStoreWaitInfo& wait, WaitCallback done);

 private:
  struct PendingWait;
  struct KeyWaiters;
  // Node-based: waits point to its elements, instead of copying keys that thousands of clients may
  // wait for.
  using WaitersByKey = absl::node_hash_map<std::string, KeyWaiters>;

  // A key that a wait waits for: an element of the key's list of waiters.
  struct Waiter {
    PendingWait* wait = nullptr;
    // Null once the key has existed.
    WaitersByKey::value_type* key = nullptr;
    Waiter* previous = nullptr;
    Waiter* next = nullptr;
  };
  // The waiters for a key, oldest first. A queue serves them in this order.
  struct KeyWaiters {
    Waiter* first = nullptr;
    Waiter* last = nullptr;
  };
  struct PendingWait {
    uint64_t number = 0;
    TcpStoreClient client;
    // One per distinct key, in the order of the request; for a barrier, one for its key. Never
    // resized, since lists link its elements.
    std::vector<Waiter> waiters;
    // The number of keys that have not existed since the wait began, and the index of the first.
    size_t absent = 0;
    size_t first_absent = 0;
    bool is_barrier = false;
    int64_t world_size = 0;
    // The wait is for a single key, so that a queue element that ends it is reserved for the
    // client.
    bool may_reserve = false;
    // See WaitBytes.
    size_t bytes = 0;
    absl::Time since;
    WaitCallback done;
  };
  struct Queue {
    std::deque<StoreValue> elements;
    // The number of elements that are reserved for clients.
    size_t reserved = 0;
  };
  struct Reservation {
    std::string queue;
    absl::Time until;
  };
  // Returns OK if a value of `bytes` fits in addition to the queues.
  absl::Status CheckRoom(absl::string_view key, size_t bytes) const;
  // `key` has been set.
  void OnSet(absl::string_view key);
  // Adds an element without serving waits.
  //   Errors: as Push.
  absl::Status AddElement(absl::string_view queue, StoreValue value);
  // Ends waits for the queue while it has an element that is not reserved.
  void ServeQueue(absl::string_view queue);
  void AddWait(TcpStoreClient client, const std::vector<absl::string_view>& absent,
               std::unique_ptr<PendingWait> wait);
  // Removes it from the list of its key, and the key if it has no other waiters.
  void RemoveWaiter(Waiter& waiter);
  // The key of a waiter has existed. Returns true if the wait has no other absent key; the caller
  // then calls CompleteWait.
  bool RemoveArrived(Waiter& waiter);
  void CompleteWait(PendingWait& wait);
  void Reserve(TcpStoreClient client, absl::string_view queue);
  // Ends the client's reservation. Returns its queue if there was one.
  std::optional<std::string> EndReservation(TcpStoreClient client);
  bool HasFreeElement(absl::string_view queue) const;
  bool Exists(absl::string_view key) const;
  //   Errors: as Add.
  absl::StatusOr<int64_t> NumberAt(absl::string_view key) const;

  const Clock& clock_;
  Completions& completions_;
  WaitIds ids_;
  Store values_;
  absl::flat_hash_map<std::string, Queue> queues_;
  size_t queued_bytes_ = 0;
  // Keyed by wait number.
  absl::btree_map<uint64_t, std::unique_ptr<PendingWait>> waits_;
  absl::flat_hash_map<TcpStoreClient, PendingWait*> wait_of_client_;
  WaitersByKey waiters_;
  absl::flat_hash_map<TcpStoreClient, Reservation> reservations_;
  uint64_t last_wait_ = 0;
  bool is_idle_ = false;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_TCPSTORE_TCP_STORE_H_
