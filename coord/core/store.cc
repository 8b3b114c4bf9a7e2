// SPDX-License-Identifier: Apache-2.0
// The key-value store.
#include "coord/core/store.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/bounded_text.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::coord {
namespace {

// "key "a"" or "3 keys, first "a"": for messages and status pages.
std::string Describe(const std::vector<std::string>& keys) {
  if (keys.size() == 1) return absl::StrCat("key ", Quoted(keys[0]));
  return absl::StrCat(keys.size(), " keys, first ", Quoted(keys.empty() ? "" : keys[0]));
}

#if defined(__SANITIZE_THREAD__)
// It does not support fences.
constexpr bool kCanAppendInPlace = false;
#else
constexpr bool kCanAppendInPlace = true;
#endif

// Returns false, and does nothing, if a reply still refers to the value.
bool AppendInPlace(const StoreValue& present, absl::string_view value) {
  if constexpr (kCanAppendInPlace) {
    if (present.use_count() != 1) return false;
    // Orders this after the last reads of replies that referred to it.
    std::atomic_thread_fence(std::memory_order_acquire);
    // Set did not create a const object.
    const_cast<std::string&>(*present).append(value.data(), value.size());
    return true;
  }
  return false;
}

}  // namespace

std::string NormalizeKey(absl::string_view key) {
  std::string normal;
  normal.reserve(key.size());
  for (const char c : key) {
    if (c == '/' && (normal.empty() || normal.back() == '/')) continue;
    normal.push_back(c);
  }
  if (!normal.empty() && normal.back() == '/') normal.pop_back();
  return normal;
}

absl::Status Store::CheckLimits(absl::string_view key, size_t value_bytes) const {
  if (key.size() > options_.max_key_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("key of ", key.size(),
                                                   " bytes is over the limit of ",
                                                   options_.max_key_bytes, " (--max-key-bytes)"));
  }
  if (value_bytes > options_.max_value_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("value of ", value_bytes, " bytes for key ", Quoted(key),
                     " is over the limit of ", options_.max_value_bytes, " (--max-value-bytes)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Store::Put(absl::string_view key, std::string value, bool overwrite) {
  FERRY_RETURN_IF_ERROR(CheckLimits(key, value.size()));
  const auto found = entries_.find(key);
  if (found != entries_.end() && !overwrite) {
    return absl::AlreadyExistsError(absl::StrCat("key ", key, " already exists."));
  }
  const size_t freed = found == entries_.end() ? 0 : key.size() + found->second.value->size();
  if (stored_bytes_ - freed + key.size() + value.size() > options_.max_store_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store holds ", stored_bytes_, " bytes; ", key.size() + value.size(),
                     " more are over the limit (--max-store-bytes)"));
  }
  if (found == entries_.end() && entries_.size() >= options_.max_keys) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store holds ", entries_.size(), " keys, the limit (--max-keys)"));
  }
  ++revision_;
  Set(key, std::move(value));
  Wake(key);
  return revision_;
}

absl::StatusOr<int64_t> Store::Put(std::vector<std::pair<std::string, std::string>> entries,
                                   bool overwrite) {
  size_t bytes = 0;
  size_t freed = 0;
  size_t fresh = 0;
  for (const auto& [key, value] : entries) {
    FERRY_RETURN_IF_ERROR(CheckLimits(key, value.size()));
    bytes += key.size() + value.size();
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
      ++fresh;
      continue;
    }
    if (!overwrite) return absl::AlreadyExistsError(absl::StrCat("key ", key, " already exists."));
    freed += key.size() + found->second.value->size();
  }
  // A repeated key in one call can be counted as freed twice; never below zero.
  if (stored_bytes_ + bytes - std::min(freed, bytes) > options_.max_store_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store holds ", stored_bytes_, " bytes; ", bytes,
                     " more are over the limit (--max-store-bytes)"));
  }
  if (entries_.size() + fresh > options_.max_keys) {
    return absl::ResourceExhaustedError(absl::StrCat("the store holds ", entries_.size(), " keys; ",
                                                     entries.size(),
                                                     " more are over the limit (--max-keys)"));
  }
  FERRY_RETURN_IF_ERROR(CheckEvents(entries));
  if (!entries.empty()) ++revision_;
  for (auto& [key, value] : entries) Set(key, std::move(value));
  // After all are set: a get of several of them sees all or none.
  for (const auto& [key, value] : entries) Wake(key);
  return revision_;
}

void Store::Set(absl::string_view key, std::string value) {
  // Not a const object: Append may extend it in place.
  StoreValue shared = std::make_shared<std::string>(std::move(value));
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    stored_bytes_ += key.size();
    found = entries_.emplace(std::string(key), Stored{}).first;
  } else {
    stored_bytes_ -= found->second.value->size();
  }
  stored_bytes_ += shared->size();
  found->second = Stored{std::move(shared), revision_};
  Notify(/*deleted=*/false, key, found->second);
}

absl::Status Store::CheckRoom(absl::string_view key, size_t value_bytes, size_t other_bytes) const {
  FERRY_RETURN_IF_ERROR(CheckLimits(key, value_bytes));
  const size_t held = stored_bytes_ + other_bytes;
  if (held + key.size() + value_bytes <= options_.max_store_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the store holds ", held, " bytes; ",
                                                   key.size() + value_bytes,
                                                   " more are over the limit (--max-store-bytes)"));
}

absl::Status Store::Restore(absl::string_view key, StoreValue value, size_t other_bytes) {
  FERRY_RETURN_IF_ERROR(CheckRoom(key, value->size(), other_bytes));
  if (entries_.size() >= options_.max_keys) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store holds ", entries_.size(), " keys, the limit (--max-keys)"));
  }
  const size_t bytes = key.size() + value->size();
  if (!entries_.emplace(std::string(key), Stored{std::move(value), revision_ + 1}).second) {
    return absl::AlreadyExistsError(absl::StrCat("key ", Quoted(key), " occurs twice"));
  }
  ++revision_;
  stored_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Store::Append(absl::string_view key, absl::string_view value) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return Put(key, std::string(value), /*overwrite=*/true).status();
  }
  StoreValue& present = found->second.value;
  FERRY_RETURN_IF_ERROR(CheckLimits(key, present->size() + value.size()));
  FERRY_RETURN_IF_ERROR(CheckRoom(key, value.size(), /*other_bytes=*/0));
  stored_bytes_ += value.size();
  if (!AppendInPlace(present, value)) {
    present = std::make_shared<std::string>(absl::StrCat(*present, value));
  }
  found->second.revision = ++revision_;
  Notify(/*deleted=*/false, key, found->second);
  return absl::OkStatus();
}

std::optional<StoreEntry> Store::Find(absl::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return StoreEntry{found->first, found->second.value, found->second.revision};
}

absl::StatusOr<StoreEntry> Store::Increment(absl::string_view key, int64_t increment) {
  int64_t number = 0;
  if (const auto found = entries_.find(key); found != entries_.end()) {
    if (!absl::SimpleAtoi(*found->second.value, &number)) {
      return absl::FailedPreconditionError(absl::StrCat("key ", Quoted(key), " holds ",
                                                        Quoted(*found->second.value, 40),
                                                        ", which is not a 64-bit number"));
    }
  }
  if (__builtin_add_overflow(number, increment, &number)) {
    return absl::OutOfRangeError(
        absl::StrCat("adding ", increment, " to key ", Quoted(key), " leaves the 64-bit range"));
  }
  FERRY_RETURN_IF_ERROR(Put(key, absl::StrCat(number), /*overwrite=*/true).status());
  return *Find(key);
}

absl::StatusOr<std::pair<bool, StoreEntry>> Store::CompareAndSet(
    absl::string_view key, const std::optional<std::string>& expected, std::string desired) {
  const std::optional<StoreEntry> present = Find(key);
  const bool matches = expected.has_value() ? present.has_value() && *present->value == *expected
                                            : !present.has_value();
  if (!matches) {
    return std::make_pair(false, present.value_or(StoreEntry{std::string(key), nullptr, 0}));
  }
  FERRY_RETURN_IF_ERROR(Put(key, std::move(desired), /*overwrite=*/true).status());
  return std::make_pair(true, *Find(key));
}

int64_t Store::Delete(absl::string_view key, bool subtree) {
  int64_t deleted = 0;
  const auto erase = [&](absl::btree_map<std::string, Stored>::iterator it) {
    if (deleted++ == 0) ++revision_;
    stored_bytes_ -= it->first.size() + it->second.value->size();
    const Stored gone{std::move(it->second.value), revision_};
    const std::string gone_key = it->first;
    const auto next = entries_.erase(it);
    Notify(/*deleted=*/true, gone_key, gone);
    return next;
  };
  if (const auto found = entries_.find(key); found != entries_.end()) erase(found);
  if (!subtree) return deleted;
  const std::string prefix = absl::StrCat(key, "/");
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix);) {
    it = erase(it);
  }
  return deleted;
}

std::vector<StoreEntry> Store::List(absl::string_view prefix, size_t limit) const {
  std::vector<StoreEntry> found;
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
    if (limit != 0 && found.size() == limit) break;
    found.push_back({it->first, it->second.value, it->second.revision});
  }
  return found;
}

void Store::ForEach(
    absl::string_view prefix,
    absl::FunctionRef<void(absl::string_view key, const StoreValue& value)> visit) const {
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
    visit(it->first, it->second.value);
  }
}

void Store::ForEachAfter(
    absl::string_view prefix, std::optional<absl::string_view> after,
    absl::FunctionRef<bool(absl::string_view key, const StoreValue& value)> visit) const {
  const bool is_behind = after.has_value() && *after >= prefix;
  for (auto it = is_behind ? entries_.upper_bound(*after) : entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
    if (!visit(it->first, it->second.value)) return;
  }
}

size_t Store::ListBytes(absl::string_view prefix) const {
  size_t bytes = 0;
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && absl::StartsWith(it->first, prefix); ++it) {
    bytes += it->first.size() + it->second.value->size() + kEntryBytes;
  }
  return bytes;
}

size_t Store::FirstAbsent(const std::vector<std::string>& keys, size_t from) const {
  while (from < keys.size() && entries_.contains(keys[from])) ++from;
  return from;
}

std::optional<std::vector<StoreEntry>> Store::FindAll(const std::vector<std::string>& keys) const {
  std::vector<StoreEntry> entries;
  entries.reserve(keys.size());
  for (const std::string& key : keys) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return std::nullopt;
    entries.push_back({found->first, found->second.value, found->second.revision});
  }
  return entries;
}

WaitId Store::Get(std::vector<std::string> keys, TaskId task, absl::Time now, absl::Time deadline,
                  GetCallback done) {
  for (const std::string& key : keys) {
    // Such a key can never exist.
    if (absl::Status status = CheckLimits(key, 0); !status.ok()) {
      completions_.Post(std::move(done), std::move(status));
      return kNoWait;
    }
  }
  if (std::optional<std::vector<StoreEntry>> found = FindAll(keys); found.has_value()) {
    completions_.Post(std::move(done), *std::move(found));
    return kNoWait;
  }
  const size_t absent = FirstAbsent(keys, 0);
  Waiting waiting{std::move(keys), absent, task, now, deadline, std::move(done)};
  if (deadline <= now || waits_.size() >= options_.max_pending_gets) {
    absl::Status why =
        deadline <= now
            ? TimedOut(waiting)
            : absl::ResourceExhaustedError(absl::StrCat(
                  waits_.size(), " calls are waiting for keys, the limit (--max-pending-gets)"));
    completions_.Post(std::move(waiting.done), std::move(why));
    return kNoWait;
  }
  const WaitId wait = ids_.Next(WaitKind::kGet);
  waiters_[waiting.keys[absent]].insert(wait);
  if (deadline != absl::InfiniteFuture()) deadlines_.emplace(deadline, wait);
  waits_.emplace(wait, std::move(waiting));
  return wait;
}

void Store::Wake(absl::string_view key) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  const absl::btree_set<WaitId> woken = std::move(found->second);
  waiters_.erase(found);
  for (const WaitId wait : woken) {
    const auto it = waits_.find(wait);
    Waiting& waiting = it->second;
    waiting.filed_under = FirstAbsent(waiting.keys, waiting.filed_under);
    // At the end, start over: a key found before may have been deleted since.
    if (waiting.filed_under == waiting.keys.size()) {
      waiting.filed_under = FirstAbsent(waiting.keys, 0);
    }
    if (waiting.filed_under < waiting.keys.size()) {
      waiters_[waiting.keys[waiting.filed_under]].insert(wait);
      continue;
    }
    completions_.Post(std::move(waiting.done), *FindAll(waiting.keys));
    deadlines_.erase({waiting.deadline, wait});
    waits_.erase(it);
  }
}

void Store::RemoveFromIndexes(WaitId wait, const Waiting& waiting) {
  const auto filed = waiters_.find(waiting.keys[waiting.filed_under]);
  filed->second.erase(wait);
  if (filed->second.empty()) waiters_.erase(filed);
  deadlines_.erase({waiting.deadline, wait});
}

bool Store::Cancel(WaitId wait, const absl::Status& why) {
  const auto it = waits_.find(wait);
  if (it == waits_.end()) return false;
  RemoveFromIndexes(wait, it->second);
  completions_.Post(std::move(it->second.done), why);
  waits_.erase(it);
  return true;
}

absl::Status Store::TimedOut(const Waiting& waiting) const {
  constexpr size_t kNamed = 8;
  std::vector<std::string> missing;
  size_t count = 0;
  for (const std::string& key : waiting.keys) {
    if (entries_.contains(key)) continue;
    if (++count <= kNamed) missing.push_back(Quoted(key, 80));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("waited ", ShortDuration(waiting.deadline - waiting.since), " for ", count,
                   " of ", waiting.keys.size(), waiting.keys.size() == 1 ? " key" : " keys",
                   " that have not been set: ", BoundedList(missing, kNamed, count)));
}

Store::Watch Store::AddWatch(std::string prefix, bool with_existing, WatchCallback callback) {
  if (with_existing) {
    completions_.Add([callback, entries = List(prefix)]() mutable {
      for (StoreEntry& entry : entries) callback({/*deleted=*/false, std::move(entry)});
    });
  }
  return watches_.Add(std::move(prefix), std::move(callback));
}

void Store::Notify(bool deleted, absl::string_view key, const Stored& stored) {
  std::vector<StoreWatches::List> lists = watches_.Of(key);
  if (lists.empty()) return;
  // One completion for all watches: the event is kept until earlier completions have run.
  completions_.Add(
      [lists = std::move(lists),
       event = StoreEvent{deleted, {std::string(key), stored.value, stored.revision}}]() {
        for (const StoreWatches::List& list : lists) {
          for (const WatchCallback& callback : *list) callback(event);
        }
      });
}

absl::Status Store::CheckEvents(const std::vector<std::pair<std::string, std::string>>& entries) {
  if (entries.size() <= 1 || entries.size() * watches_.count() <= kMaxEventsAtOnce) {
    return absl::OkStatus();
  }
  size_t events = 0;
  for (const auto& [key, value] : entries) events += watches_.CountOf(key);
  if (events <= kMaxEventsAtOnce) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "setting these ", entries.size(), " keys at once would tell ", events,
      " changes to those who watch them; the most is ", kMaxEventsAtOnce, ": set fewer at once"));
}

void Store::Clear(const absl::Status& why) {
  while (!waits_.empty()) Cancel(waits_.begin()->first, why);
  ++revision_;
  for (const auto& [key, stored] : entries_) {
    Notify(/*deleted=*/true, key, {stored.value, revision_});
  }
  entries_.clear();
  stored_bytes_ = 0;
}

absl::Time Store::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

void Store::Expire(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const WaitId wait = deadlines_.begin()->second;
    Cancel(wait, TimedOut(waits_.find(wait)->second));
  }
}

void Store::ForEachWait(absl::FunctionRef<void(const WaitInfo&)> visit) const {
  for (const auto& [wait, waiting] : waits_) {
    visit({waiting.task, Describe(waiting.keys), waiting.since});
  }
}

void Store::AddTableSizes(TableSizes& sizes) const {
  size_t filed = 0;
  size_t filed_under_none = 0;
  for (const auto& [key, waits] : waiters_) {
    filed += waits.size();
    filed_under_none += waits.empty() ? 1 : 0;
  }
  sizes["store.keys"] = entries_.size();
  sizes["store.bytes"] = stored_bytes_;
  sizes["store.waits"] = waits_.size();
  sizes["store.filed_waits"] = filed;
  sizes["store.keys_without_waits"] = filed_under_none;
  sizes["store.deadlines"] = deadlines_.size();
  sizes["store.watches"] = watches_.count();
  sizes["store.watched_prefixes"] = watches_.prefix_count();
}

}  // namespace ferry::coord
