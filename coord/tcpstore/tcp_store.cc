// SPDX-License-Identifier: Apache-2.0
// The store's operations, waits and queues.
#include "coord/tcpstore/tcp_store.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::coord {
namespace {

// Estimated memory of a key that has no other waiter.
constexpr size_t kWaitBytesPerNewKey = 96;

}  // namespace

absl::Status TcpStore::CheckRoom(absl::string_view key, size_t bytes) const {
  // Without queues Store checks its limits itself.
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
        "key ", Quoted(key), " holds ", Quoted(*value, 40), ", which is not a 64-bit integer"));
  }
  return number;
}

absl::StatusOr<int64_t> TcpStore::Add(absl::string_view key, int64_t increment) {
  FERRY_ASSIGN_OR_RETURN(const int64_t number, NumberAt(key));
  int64_t sum = 0;
  // Wraps on overflow, as PyTorch's server does.
  (void)__builtin_add_overflow(number, increment, &sum);
  FERRY_RETURN_IF_ERROR(Set(key, absl::StrCat(sum)));
  return sum;
}

StoreValue TcpStore::Get(absl::string_view key) const {
  std::optional<StoreEntry> entry = values_.Find(key);
  return entry.has_value() ? std::move(entry->value) : nullptr;
}

int64_t TcpStore::Delete(absl::string_view key) { return values_.Delete(key, /*subtree=*/false); }

bool TcpStore::Exists(absl::string_view key) const {
  return values_.Contains(key) || HasFreeElement(key);
}

bool TcpStore::Check(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const auto& key) { return Exists(key); });
}

bool TcpStore::Wait(TcpStoreClient client, const std::vector<std::string>& keys,
                    WaitCallback done) {
  Release(client);
  std::vector<absl::string_view> absent;
  for (const std::string& key : keys) {
    if (Exists(key)) continue;
    if (absent.empty()) absent.reserve(keys.size());
    absent.push_back(key);
  }
  const bool may_reserve = keys.size() == 1;
  if (absent.empty()) {
    if (may_reserve && !values_.Contains(keys[0])) Reserve(client, keys[0]);
    return true;
  }
  auto wait = std::make_unique<PendingWait>();
  wait->may_reserve = may_reserve;
  wait->done = std::move(done);
  AddWait(client, absent, std::move(wait));
  return false;
}

absl::StatusOr<bool> TcpStore::Barrier(TcpStoreClient client, absl::string_view key,
                                       int64_t world_size, WaitCallback done) {
  Release(client);
  FERRY_ASSIGN_OR_RETURN(const int64_t arrived, Add(key, 1));
  if (arrived >= world_size) return true;
  auto wait = std::make_unique<PendingWait>();
  wait->is_barrier = true;
  wait->world_size = world_size;
  wait->done = std::move(done);
  AddWait(client, {key}, std::move(wait));
  return false;
}

void TcpStore::AddWait(TcpStoreClient client, const std::vector<absl::string_view>& absent,
                       std::unique_ptr<PendingWait> wait) {
  wait->number = ++last_wait_;
  wait->client = client;
  wait->since = clock_.CoarseNow();
  wait->bytes = sizeof(PendingWait) + absent.size() * sizeof(Waiter);
  wait->waiters.reserve(absent.size());
  for (const absl::string_view key : absent) {
    const auto [at, is_new] = waiters_.try_emplace(key);
    KeyWaiters& list = at->second;
    // A key that occurs twice: its newest waiter is of this wait.
    if (!is_new && list.last->wait == wait.get()) continue;
    Waiter& waiter = wait->waiters.emplace_back();
    waiter = {.wait = wait.get(), .key = &*at, .previous = list.last};
    (is_new ? list.first : list.last->next) = &waiter;
    list.last = &waiter;
    if (is_new) wait->bytes += key.size() + kWaitBytesPerNewKey;
  }
  wait->absent = wait->waiters.size();
  wait_of_client_.insert_or_assign(client, wait.get());
  waits_.emplace(wait->number, std::move(wait));
}

void TcpStore::RemoveWaiter(Waiter& waiter) {
  KeyWaiters& list = waiter.key->second;
  (waiter.previous == nullptr ? list.first : waiter.previous->next) = waiter.next;
  (waiter.next == nullptr ? list.last : waiter.next->previous) = waiter.previous;
  if (list.first == nullptr) waiters_.erase(waiter.key->first);
  waiter.key = nullptr;
}

bool TcpStore::RemoveArrived(Waiter& waiter) {
  PendingWait& wait = *waiter.wait;
  RemoveWaiter(waiter);
  if (--wait.absent == 0) return true;
  while (wait.waiters[wait.first_absent].key == nullptr) ++wait.first_absent;
  return false;
}

void TcpStore::CompleteWait(PendingWait& wait) {
  completions_.Add(std::move(wait.done));
  wait_of_client_.erase(wait.client);
  waits_.erase(wait.number);
}

void TcpStore::OnSet(absl::string_view key) {
  if (waiters_.empty()) return;
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  const absl::StatusOr<int64_t> number = NumberAt(key);
  // Removing the last waiter removes the list.
  for (Waiter* next = found->second.first; next != nullptr;) {
    Waiter& waiter = *std::exchange(next, next->next);
    PendingWait& wait = *waiter.wait;
    if (wait.is_barrier && !(number.ok() && *number >= wait.world_size)) continue;
    if (RemoveArrived(waiter)) CompleteWait(wait);
  }
}

void TcpStore::ServeQueue(absl::string_view queue) {
  while (HasFreeElement(queue)) {
    const auto found = waiters_.find(queue);
    if (found == waiters_.end()) return;
    // Barriers do not wait for queues.
    Waiter* waiter = found->second.first;
    while (waiter != nullptr && waiter->wait->is_barrier) waiter = waiter->next;
    if (waiter == nullptr) return;
    PendingWait& wait = *waiter->wait;
    if (!RemoveArrived(*waiter)) continue;
    if (wait.may_reserve) Reserve(wait.client, queue);
    CompleteWait(wait);
  }
}

void TcpStore::CancelWait(TcpStoreClient client) {
  const auto found = wait_of_client_.find(client);
  if (found == wait_of_client_.end()) return;
  PendingWait& wait = *found->second;
  for (size_t i = wait.first_absent; i < wait.waiters.size(); ++i) {
    if (wait.waiters[i].key != nullptr) RemoveWaiter(wait.waiters[i]);
  }
  wait_of_client_.erase(found);
  waits_.erase(wait.number);
}

size_t TcpStore::WaitBytes(TcpStoreClient client) const {
  const auto found = wait_of_client_.find(client);
  return found == wait_of_client_.end() ? 0 : found->second->bytes;
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
  if (queues_.empty()) return false;
  const auto found = queues_.find(queue);
  return found != queues_.end() && found->second.elements.size() > found->second.reserved;
}

absl::Status TcpStore::AddElement(absl::string_view queue, StoreValue value) {
  const bool is_new = !queues_.contains(queue);
  const size_t added = value->size() + kElementBytes + (is_new ? queue.size() + kElementBytes : 0);
  FERRY_RETURN_IF_ERROR(values_.CheckRoom(queue, added, queued_bytes_));
  queued_bytes_ += added;
  queues_[queue].elements.push_back(std::move(value));
  return absl::OkStatus();
}

absl::Status TcpStore::Push(absl::string_view queue, std::string value) {
  FERRY_RETURN_IF_ERROR(AddElement(queue, std::make_shared<const std::string>(std::move(value))));
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

void TcpStore::ClearIfNewJob(bool is_new_job) {
  // Without clients there are neither waits nor reservations.
  if (std::exchange(is_idle_, false) && is_new_job) {
    values_.Clear(absl::CancelledError("another job has begun"));
    queues_.clear();
    queued_bytes_ = 0;
  }
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

std::vector<TcpStoreWaitInfo> TcpStore::Waits(uint64_t after, size_t max_waits,
                                              size_t max_keys) const {
  std::vector<TcpStoreWaitInfo> waits;
  for (auto next = waits_.upper_bound(after); next != waits_.end(); ++next) {
    if (waits.size() == max_waits) break;
    const PendingWait& wait = *next->second;
    TcpStoreWaitInfo info{.client = wait.client,
                          .number = wait.number,
                          .key_count = wait.absent,
                          .is_barrier = wait.is_barrier,
                          .may_reserve = wait.may_reserve,
                          .world_size = wait.world_size,
                          .since = wait.since};
    const size_t key_count = std::min(max_keys, wait.absent);
    for (size_t i = wait.first_absent; info.keys.size() < key_count; ++i) {
      const WaitersByKey::value_type* const key = wait.waiters[i].key;
      if (key != nullptr) info.keys.push_back(key->first);
    }
    if (wait.is_barrier) {
      info.arrived = NumberAt(wait.waiters[wait.first_absent].key->first).value_or(0);
    }
    waits.push_back(std::move(info));
  }
  return waits;
}

void TcpStore::AddTableSizes(TableSizes& sizes) const {
  size_t waiter_count = 0;
  for (const auto& [number, wait] : waits_) waiter_count += wait->absent;
  sizes["tcpstore.keys"] += values_.key_count();
  sizes["tcpstore.bytes"] += stored_bytes();
  sizes["tcpstore.queues"] += queues_.size();
  sizes["tcpstore.waits"] += waits_.size();
  sizes["tcpstore.waiters"] += waiter_count;
  sizes["tcpstore.reservations"] += reservations_.size();
}

TcpStoreState TcpStore::Export() const {
  TcpStoreState state;
  state.is_idle = is_idle_;
  state.entries.reserve(values_.key_count());
  values_.ForEach("", [&state](absl::string_view key, const StoreValue& value) {
    state.entries.emplace_back(key, value);
  });
  for (const auto& [name, queue] : queues_) {
    state.queues.push_back({name, {queue.elements.begin(), queue.elements.end()}});
  }
  for (const auto& [client, reservation] : reservations_) {
    state.reservations.push_back({client, reservation.queue, reservation.until});
  }
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  state.waits = Waits(/*after=*/0, kAll, kAll);
  return state;
}

absl::Status TcpStore::Restore(const TcpStoreState& state) {
  for (const auto& [key, value] : state.entries) {
    FERRY_RETURN_IF_ERROR(values_.Restore(key, value, queued_bytes_));
  }
  for (const TcpStoreState::Queue& queue : state.queues) {
    if (queues_.contains(queue.name)) {
      return absl::AlreadyExistsError(absl::StrCat("queue ", Quoted(queue.name), " occurs twice"));
    }
    for (const StoreValue& element : queue.elements) {
      FERRY_RETURN_IF_ERROR(AddElement(queue.name, element));
    }
  }
  is_idle_ = state.is_idle;
  return absl::OkStatus();
}

absl::Status TcpStore::RestoreReservation(TcpStoreClient client, absl::string_view queue,
                                          absl::Time until) {
  if (!HasFreeElement(queue) || reservations_.contains(client)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no element of queue ", Quoted(queue), " can be reserved for a client"));
  }
  Reserve(client, queue);
  reservations_[client].until = until;
  return absl::OkStatus();
}

absl::Status TcpStore::RestoreWait(TcpStoreClient client, const TcpStoreWaitInfo& wait,
                                   WaitCallback done) {
  const bool has_keys = wait.is_barrier ? wait.keys.size() == 1 : !wait.keys.empty();
  if (!has_keys || wait_of_client_.contains(client)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a client has a wait for ", wait.keys.size(), " keys, or more than one wait"));
  }
  auto restored = std::make_unique<PendingWait>();
  restored->is_barrier = wait.is_barrier;
  restored->world_size = wait.world_size;
  restored->may_reserve = wait.may_reserve;
  restored->done = std::move(done);
  AddWait(client, {wait.keys.begin(), wait.keys.end()}, std::move(restored));
  waits_.rbegin()->second->since = wait.since;
  return absl::OkStatus();
}

}  // namespace ferry::coord
