// SPDX-License-Identifier: Apache-2.0
// Store: the job's key-value store, with blocking gets and watches.
#ifndef FERRY_COORD_CORE_STORE_H_
#define FERRY_COORD_CORE_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/table_sizes.h"
#include "coord/core/completions.h"
#include "coord/core/options.h"
#include "coord/core/store_watches.h"
#include "coord/core/types.h"

namespace ferry::coord {

// Shared and immutable: an answer holds a value while the key is set to another.
using StoreValue = std::shared_ptr<const std::string>;

struct StoreEntry {
  std::string key;
  StoreValue value;
  // The store's revision when the value was set; grows with every change of the store.
  int64_t revision = 0;
};

struct StoreEvent {
  bool deleted = false;
  StoreEntry entry;
};

// Strips slashes at both ends and collapses runs of them, as the CoordinationService clients
// expect; "/a//b/" and "a/b" are one key there.
std::string NormalizeKey(absl::string_view key);

// Not thread-safe: part of a Coordinator. Keys are exact bytes here; adapters normalise. Callbacks
// go to `completions`, which outlives the store.
class Store final {
 public:
  using GetCallback = absl::AnyInvocable<void(absl::StatusOr<std::vector<StoreEntry>>) &&>;
  using WatchCallback = StoreWatches::Callback;
  using Watch = StoreWatch;
  // The maximum number of watch events that one Put may cause: delivering so many takes about a
  // second, during which no others are delivered.
  static constexpr size_t kMaxEventsAtOnce = size_t{1} << 22;

  Store(const CoordinatorOptions& options, Completions& completions, WaitIds& ids)
      : options_(options), completions_(completions), ids_(ids) {}

  // Sets every entry, or none. Returns the new revision.
  //   Errors: ALREADY_EXISTS when a key exists and not `overwrite`; INVALID_ARGUMENT for a key or
  //   value over its limit; RESOURCE_EXHAUSTED when the store is full, or it would cause too many
  //   watch events.
  absl::StatusOr<int64_t> Put(std::vector<std::pair<std::string, std::string>> entries,
                              bool overwrite);
  absl::StatusOr<int64_t> Put(absl::string_view key, std::string value, bool overwrite);

  // Appends to the value, which is empty when the key is absent.
  //   Errors: as Put.
  absl::Status Append(absl::string_view key, absl::string_view value);
  // Returns OK if `value_bytes` more fit for `key`, beside `other_bytes` that the caller stores.
  //   Errors: as Put.
  absl::Status CheckRoom(absl::string_view key, size_t value_bytes, size_t other_bytes) const;

  // Adds an entry whose value is shared already, to a store without waits and watches, beside
  // `other_bytes` that the caller stores.
  //   Errors: as Put, without overwriting.
  absl::Status Restore(absl::string_view key, StoreValue value, size_t other_bytes);

  bool Contains(absl::string_view key) const { return entries_.contains(key); }
  std::optional<StoreEntry> Find(absl::string_view key) const;
  // Returns the entries of all keys in this order; nullopt if any is absent.
  std::optional<std::vector<StoreEntry>> FindAll(const std::vector<std::string>& keys) const;

  // Adds to the decimal number at `key` (0 when absent) and returns the entry after it.
  //   Errors: FAILED_PRECONDITION when the value is no 64-bit number; OUT_OF_RANGE on overflow.
  absl::StatusOr<StoreEntry> Increment(absl::string_view key, int64_t increment);

  // Sets `key` to `desired` if it holds `expected` (nullopt: if it is absent). Returns whether it
  // did, and the entry after the call (an empty `value` when absent).
  absl::StatusOr<std::pair<bool, StoreEntry>> CompareAndSet(
      absl::string_view key, const std::optional<std::string>& expected, std::string desired);

  // Removes the key and, with `subtree`, everything under key + "/". Returns the number of entries
  // removed.
  int64_t Delete(absl::string_view key, bool subtree);

  // Entries whose key begins with `prefix`, ordered; at most `limit` unless that is 0.
  std::vector<StoreEntry> List(absl::string_view prefix, size_t limit = 0) const;
  // As List, without copies.
  void ForEach(absl::string_view prefix,
               absl::FunctionRef<void(absl::string_view key, const StoreValue& value)> visit) const;
  // As ForEach, beginning behind the key `after` unless that is nullopt, until `visit` returns
  // false: for callers that list in parts.
  void ForEachAfter(
      absl::string_view prefix, std::optional<absl::string_view> after,
      absl::FunctionRef<bool(absl::string_view key, const StoreValue& value)> visit) const;
  // The bytes of the keys and values of such a list, plus kEntryBytes per entry: its cost, over
  // all its encodings, until it is sent.
  static constexpr size_t kEntryBytes = 256;
  size_t ListBytes(absl::string_view prefix) const;

  // Waits until every key exists. On behalf of `task` (may be kNoTask), since `now`.
  //   Errors through `done`: DEADLINE_EXCEEDED naming the missing keys; CANCELLED when cancelled
  //   or the store is cleared; RESOURCE_EXHAUSTED when too many calls wait.
  WaitId Get(std::vector<std::string> keys, TaskId task, absl::Time now, absl::Time deadline,
             GetCallback done);
  // Ends a waiting Get with `why`; returns false when it is over already.
  bool Cancel(WaitId wait, const absl::Status& why);

  // Calls `callback` for every change under `prefix` from now on, in order; with `with_existing`,
  // first for every existing entry.
  Watch AddWatch(std::string prefix, bool with_existing, WatchCallback callback);
  void RemoveWatch(Watch watch) { watches_.Remove(watch); }

  // Empties the store; waiting Gets end with `why`. Revisions continue.
  void Clear(const absl::Status& why);

  absl::Time NextDeadline() const;
  void Expire(absl::Time now);

  int64_t revision() const { return revision_; }
  size_t key_count() const { return entries_.size(); }
  size_t stored_bytes() const { return stored_bytes_; }
  size_t wait_count() const { return waits_.size(); }
  void ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const;
  // As StoreWatches::lookups.
  uint64_t watch_lookups() const { return watches_.lookups(); }
  // "store...."
  void AddTableSizes(TableSizes& sizes) const;

 private:
  struct Stored {
    StoreValue value;
    int64_t revision = 0;
  };
  struct Waiting {
    std::vector<std::string> keys;
    // Index of the key this wait is filed under in waiters_: the first absent one.
    size_t filed_under = 0;
    TaskId task = kNoTask;
    absl::Time since;
    absl::Time deadline;
    GetCallback done;
  };

  absl::Status CheckLimits(absl::string_view key, size_t value_bytes) const;
  absl::Status CheckEvents(const std::vector<std::pair<std::string, std::string>>& entries);
  // Does not wake waiters.
  void Set(absl::string_view key, std::string value);
  void Notify(bool deleted, absl::string_view key, const Stored& stored);
  // Index of the first absent key, or keys.size().
  size_t FirstAbsent(const std::vector<std::string>& keys, size_t from) const;
  void Wake(absl::string_view key);
  void RemoveFromIndexes(WaitId wait, const Waiting& waiting);
  absl::Status TimedOut(const Waiting& waiting) const;

  // Constant after construction.
  const CoordinatorOptions& options_;
  Completions& completions_;
  WaitIds& ids_;

  absl::btree_map<std::string, Stored> entries_;
  size_t stored_bytes_ = 0;
  int64_t revision_ = 0;
  absl::flat_hash_map<WaitId, Waiting> waits_;
  absl::flat_hash_map<std::string, absl::btree_set<WaitId>> waiters_;
  // The waits with a finite deadline.
  absl::btree_set<std::pair<absl::Time, WaitId>> deadlines_;
  StoreWatches watches_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_STORE_H_
