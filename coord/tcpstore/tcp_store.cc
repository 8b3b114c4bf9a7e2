// SPDX-License-Identifier: Apache-2.0
// The store's operations, waits and queues.
#include "coord/tcpstore/tcp_store.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::coord {

absl::Status TcpStore::CheckRoom(absl::string_view key, size_t bytes) const {
  // Without queues the store's own limits are exact.
  return queued_bytes_ == 0 ? absl::OkStatus() : values_.CheckRoom(key, bytes, queued_bytes_);
}

absl::Status TcpStore::Set(absl::string_view key, std::string value) {
  FERRY_RETURN_IF_ERROR(CheckRoom(key, value.size()));
  FERRY_RETURN_IF_ERROR(values_.Put(key, std::move(value), /*overwrite=*/true).status());
  OnSet(key);
  return absl::OkStatus();
}

absl::Status TcpStore::MultiSet(const std::vector<std::string>& keys,
                                std::vector<std::string> values) {
  for (size_t i = 0; i < keys.size(); ++i) {
    FERRY_RETURN_IF_ERROR(Set(keys[i], std::move(values[i])));
  }
  return absl::OkStatus();
}

absl::Status TcpStore::Append(absl::string_view key, absl::string_view value) {
  FERRY_RETURN_IF_ERROR(CheckRoom(key, value.size()));
  FERRY_RETURN_IF_ERROR(values_.Append(key, value));
  OnSet(key);
  return absl::OkStatus();
}

absl::StatusOr<StoreValue> TcpStore::CompareSet(absl::string_view key, std::string expected,
                                                std::string desired) {
  StoreValue present = Get(key);
  if (present == nullptr && !expected.empty()) {
    return std::make_shared<const std::string>(std::move(expected));
  }
  if (present != nullptr && *present != expected) return present;
  FERRY_RETURN_IF_ERROR(Set(key, std::move(desired)));
  return Get(key);
}

absl::StatusOr<int64_t> TcpStore::NumberAt(absl::string_view key) const {
  const StoreValue value = Get(key);
  int64_t number = 0;
  if (value != nullptr && !absl::SimpleAtoi(*value, &number)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "key ", Quoted(key), " holds ", Quoted(*value, 40), ", which is not a 64-bit number"));
  }
  return number;
}

absl::StatusOr<int64_t> TcpStore::Add(absl::string_view key, int64_t increment) {
  FERRY_ASSIGN_OR_RETURN(const int64_t number, NumberAt(key));
  int64_t sum = 0;
  // Wraps, as upstream's.
  (void)__builtin_add_overflow(number, increment, &sum);
  FERRY_RETURN_IF_ERROR(Set(key, absl::StrCat(sum)));
  return sum;
}

StoreValue TcpStore::Get(absl::string_view key) const {
  std::optional<StoreEntry> entry = values_.Find(key);
  return entry.has_value() ? std::move(entry->value) : nullptr;
}

int64_t TcpStore::Delete(absl::string_view key) { return values_.Delete(key, /*subtree=*/false); }

std::vector<std::string> TcpStore::ListKeys() const {
  std::vector<std::string> keys;
  keys.reserve(values_.key_count());
  values_.ForEach("",
                  [&keys](absl::string_view key, const StoreValue&) { keys.emplace_back(key); });
  return keys;
}

bool TcpStore::Exists(absl::string_view key) const {
  return values_.Contains(key) || HasFreeElement(key);
}

bool TcpStore::Check(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const auto& key) { return Exists(key); });
}

bool TcpStore::Wait(TcpStoreClient client, const std::vector<std::string>& keys,
                    WaitCallback done) {
  Release(client);
  Waiting waiting;
  for (const std::string& key : keys) {
    if (!Exists(key)) waiting.absent.insert(key);
  }
  waiting.may_reserve = keys.size() == 1;
  if (waiting.absent.empty()) {
    if (waiting.may_reserve && !values_.Contains(keys[0])) Reserve(client, keys[0]);
    return true;
  }
  waiting.done = std::move(done);
  Park(client, std::move(waiting));
  return false;
}

absl::StatusOr<bool> TcpStore::Barrier(TcpStoreClient client, absl::string_view key,
                                       int64_t world_size, WaitCallback done) {
  Release(client);
  FERRY_ASSIGN_OR_RETURN(const int64_t arrived, Add(key, 1));
  if (arrived >= world_size) return true;
  Waiting waiting;
  waiting.absent.emplace(key);
  waiting.is_barrier = true;
  waiting.world_size = world_size;
  waiting.done = std::move(done);
  Park(client, std::move(waiting));
  return false;
}

void TcpStore::Park(TcpStoreClient client, Waiting waiting) {
  waiting.turn = ++last_turn_;
  waiting.since = clock_.CoarseNow();
  for (const std::string& key : waiting.absent) lines_[key].emplace(waiting.turn, client);
  waits_.insert_or_assign(client, std::move(waiting));
}

void TcpStore::LeaveLine(absl::string_view key, uint64_t turn) {
  const auto line = lines_.find(key);
  line->second.erase(turn);
  if (line->second.empty()) lines_.erase(line);
}

void TcpStore::Finish(TcpStoreClient client) {
  const auto wait = waits_.find(client);
  completions_.Add(std::move(wait->second.done));
  waits_.erase(wait);
}

void TcpStore::OnSet(absl::string_view key) {
  const auto found = lines_.find(key);
  if (found == lines_.end()) return;
  const absl::StatusOr<int64_t> number = NumberAt(key);
  Line& line = found->second;
  for (auto next = line.begin(); next != line.end();) {
    const TcpStoreClient client = next->second;
    Waiting& waiting = waits_.find(client)->second;
    if (waiting.is_barrier && !(number.ok() && *number >= waiting.world_size)) {
      ++next;
      continue;
    }
    next = line.erase(next);
    waiting.absent.erase(key);
    if (waiting.absent.empty()) Finish(client);
  }
  if (line.empty()) lines_.erase(found);
}

void TcpStore::ServeQueue(absl::string_view queue) {
  while (HasFreeElement(queue)) {
    const auto line = lines_.find(queue);
    if (line == lines_.end()) return;
    // Barriers do not wait for queues.
    const auto next = std::find_if(
        line->second.begin(), line->second.end(),
        [this](const auto& waiter) { return !waits_.find(waiter.second)->second.is_barrier; });
    if (next == line->second.end()) return;
    const TcpStoreClient client = next->second;
    Waiting& waiting = waits_.find(client)->second;
    waiting.absent.erase(queue);
    const bool may_reserve = waiting.may_reserve;
    LeaveLine(queue, waiting.turn);
    if (!waiting.absent.empty()) continue;
    if (may_reserve) Reserve(client, queue);
    Finish(client);
  }
}

void TcpStore::CancelWait(TcpStoreClient client) {
  const auto wait = waits_.find(client);
  if (wait == waits_.end()) return;
  for (const std::string& key : wait->second.absent) LeaveLine(key, wait->second.turn);
  waits_.erase(wait);
}

void TcpStore::Release(TcpStoreClient client) {
  CancelWait(client);
  const std::optional<std::string> queue = EndReservation(client);
  if (queue.has_value()) ServeQueue(*queue);
}

void TcpStore::Reserve(TcpStoreClient client, absl::string_view queue) {
  ++queues_.find(queue)->second.reserved;
  reservations_[client] = {std::string(queue), clock_.CoarseNow() + kReservation};
}

std::optional<std::string> TcpStore::EndReservation(TcpStoreClient client) {
  const auto found = reservations_.find(client);
  if (found == reservations_.end()) return std::nullopt;
  std::string queue = std::move(found->second.queue);
  reservations_.erase(found);
  --queues_.find(queue)->second.reserved;
  return queue;
}

bool TcpStore::HasFreeElement(absl::string_view queue) const {
  const auto found = queues_.find(queue);
  return found != queues_.end() && found->second.elements.size() > found->second.reserved;
}

absl::Status TcpStore::Push(absl::string_view queue, std::string value) {
  const bool is_new = !queues_.contains(queue);
  const size_t added = value.size() + kElementBytes + (is_new ? queue.size() + kElementBytes : 0);
  FERRY_RETURN_IF_ERROR(values_.CheckRoom(queue, added, queued_bytes_));
  queued_bytes_ += added;
  queues_[queue].elements.push_back(std::make_shared<const std::string>(std::move(value)));
  ServeQueue(queue);
  return absl::OkStatus();
}

StoreValue TcpStore::Pop(TcpStoreClient client, absl::string_view queue, int64_t& length) {
  const std::optional<std::string> reserved = EndReservation(client);
  if (reserved.has_value() && *reserved != queue) ServeQueue(*reserved);
  length = 0;
  if (!HasFreeElement(queue)) return nullptr;
  const auto found = queues_.find(queue);
  length = static_cast<int64_t>(found->second.elements.size());
  StoreValue value = std::move(found->second.elements.front());
  found->second.elements.pop_front();
  queued_bytes_ -= value->size() + kElementBytes;
  if (found->second.elements.empty()) {
    queued_bytes_ -= queue.size() + kElementBytes;
    queues_.erase(found);
  }
  return value;
}

int64_t TcpStore::QueueLength(absl::string_view queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : static_cast<int64_t>(found->second.elements.size());
}

absl::Time TcpStore::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [client, reservation] : reservations_) next = std::min(next, reservation.until);
  return next;
}

void TcpStore::Advance() {
  const absl::Time now = clock_.Now();
  std::vector<TcpStoreClient> ended;
  for (const auto& [client, reservation] : reservations_) {
    if (reservation.until <= now) ended.push_back(client);
  }
  for (const TcpStoreClient client : ended) ServeQueue(*EndReservation(client));
}

void TcpStore::ForEachEntry(
    absl::string_view prefix,
    absl::FunctionRef<void(absl::string_view key, const StoreValue&)> visit) const {
  values_.ForEach(prefix, visit);
}

std::vector<TcpStoreWaitInfo> TcpStore::Waits() const {
  std::vector<TcpStoreWaitInfo> waits;
  waits.reserve(waits_.size());
  for (const auto& [client, waiting] : waits_) {
    TcpStoreWaitInfo info{.client = client,
                          .keys = {waiting.absent.begin(), waiting.absent.end()},
                          .is_barrier = waiting.is_barrier,
                          .world_size = waiting.world_size,
                          .since = waiting.since};
    if (waiting.is_barrier) info.arrived = NumberAt(info.keys[0]).value_or(0);
    waits.push_back(std::move(info));
  }
  std::sort(waits.begin(), waits.end(), [](const auto& a, const auto& b) {
    return std::tie(a.since, a.client) < std::tie(b.since, b.client);
  });
  return waits;
}

void TcpStore::AddTableSizes(TableSizes& sizes) const {
  size_t in_line = 0;
  for (const auto& [key, line] : lines_) in_line += line.size();
  sizes["tcpstore.keys"] += values_.key_count();
  sizes["tcpstore.bytes"] += stored_bytes();
  sizes["tcpstore.queues"] += queues_.size();
  sizes["tcpstore.waits"] += waits_.size();
  sizes["tcpstore.waiters"] += in_line;
  sizes["tcpstore.reservations"] += reservations_.size();
}

}  // namespace ferry::coord
