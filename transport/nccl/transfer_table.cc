// SPDX-License-Identifier: Apache-2.0
// TransferTable: the unfinished transfers of one device.
#include "transport/nccl/transfer_table.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {

absl::Status TransferTable::Add(const BatchAgreementTransfer& transfer, absl::Time now) {
  const TransferKey& key = transfer.key;
  if (key.source == key.destination || (key.source != self_ && key.destination != self_) ||
      key.source.value() < 0 || key.destination.value() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(key), " is not between ", Describe(self_), " and another one"));
  }
  TransferState added;
  added.bytes = transfer.bytes;
  added.since = now;
  added.deadline = transfer.deadline;
  added.order = ++last_order_;
  if (!transfers_.emplace(key, added).second) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(key), " is already here"));
  }
  by_deadline_.emplace(transfer.deadline, key);
  pending_[PeerOf(key)].emplace(added.order, key);
  return absl::OkStatus();
}

const TransferState* TransferTable::Find(const TransferKey& key) const {
  const auto found = transfers_.find(key);
  return found == transfers_.end() ? nullptr : &found->second;
}

const TransferState& TransferTable::At(const TransferKey& key) const {
  const auto found = transfers_.find(key);
  FERRY_CHECK(found != transfers_.end());
  return found->second;
}

const TransferState& TransferTable::SetPhase(const TransferKey& key, TransferPhase phase) {
  const auto found = transfers_.find(key);
  FERRY_CHECK(found != transfers_.end());
  TransferState& transfer = found->second;
  const TransferPhase before = std::exchange(transfer.phase, phase);
  if (before == phase) return transfer;
  if (before == TransferPhase::kPending) Unqueue(key, transfer);
  if (phase == TransferPhase::kPending) pending_[PeerOf(key)].emplace(transfer.order, key);
  return transfer;
}

void TransferTable::SetEndReason(const TransferKey& key, const absl::Status& why) {
  const auto found = transfers_.find(key);
  FERRY_CHECK(found != transfers_.end());
  found->second.end_reason = why;
}

absl::Status TransferTable::TakeEndReason(const TransferKey& key) {
  const auto found = transfers_.find(key);
  FERRY_CHECK(found != transfers_.end());
  return std::exchange(found->second.end_reason, absl::OkStatus());
}

void TransferTable::SetDeadline(const TransferKey& key, absl::Time deadline) {
  const auto found = transfers_.find(key);
  FERRY_CHECK(found != transfers_.end());
  by_deadline_.erase({found->second.deadline, key});
  found->second.deadline = deadline;
  by_deadline_.emplace(deadline, key);
}

bool TransferTable::SetOverdue(const TransferKey& key) {
  const auto found = transfers_.find(key);
  FERRY_CHECK(found != transfers_.end());
  return std::exchange(found->second.is_overdue, true);
}

void TransferTable::Remove(const TransferKey& key) {
  const auto found = transfers_.find(key);
  FERRY_CHECK(found != transfers_.end());
  if (found->second.phase == TransferPhase::kPending) Unqueue(key, found->second);
  by_deadline_.erase({found->second.deadline, key});
  transfers_.erase(found);
}

void TransferTable::Unqueue(const TransferKey& key, const TransferState& transfer) {
  const auto row = pending_.find(PeerOf(key));
  row->second.erase(transfer.order);
  if (row->second.empty()) pending_.erase(row);
}

std::vector<TransferKey> TransferTable::PendingWith(DeviceId peer) const {
  std::vector<TransferKey> keys;
  const auto row = pending_.find(peer);
  if (row == pending_.end()) return keys;
  for (const auto& [order, key] : row->second) keys.push_back(key);
  return keys;
}

std::vector<TransferKey> TransferTable::OldestPending(DeviceId peer, size_t max_count,
                                                      uint64_t max_bytes) const {
  std::vector<TransferKey> keys;
  const auto row = pending_.find(peer);
  if (row == pending_.end()) return keys;
  uint64_t bytes = 0;
  for (const auto& [order, key] : row->second) {
    const uint64_t more = At(key).bytes;
    if (keys.size() == max_count) break;
    if (!keys.empty() && more > max_bytes - std::min(bytes, max_bytes)) break;
    keys.push_back(key);
    bytes += more;
  }
  return keys;
}

size_t TransferTable::PositionOf(const TransferKey& key) const {
  const auto row = pending_.find(PeerOf(key));
  const auto transfer = transfers_.find(key);
  if (row == pending_.end() || transfer == transfers_.end()) return 0;
  return static_cast<size_t>(
      std::distance(row->second.begin(), row->second.lower_bound(transfer->second.order)));
}

absl::Time TransferTable::NextDeadline() const {
  return by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
}

std::vector<TransferKey> TransferTable::DueAt(absl::Time now) const {
  std::vector<TransferKey> due;
  for (const auto& [deadline, key] : by_deadline_) {
    if (deadline > now) break;
    due.push_back(key);
  }
  return due;
}

size_t TransferTable::queued_count() const {
  size_t count = 0;
  for (const auto& [peer, keys] : pending_) count += keys.size();
  return count;
}

size_t TransferTable::pending_count() const {
  return static_cast<size_t>(
      std::count_if(transfers_.begin(), transfers_.end(),
                    [](const auto& each) { return each.second.phase == TransferPhase::kPending; }));
}

}  // namespace ferry
