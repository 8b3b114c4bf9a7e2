// SPDX-License-Identifier: Apache-2.0
// TransferTable: the unfinished transfers of one device.
#ifndef FERRY_TRANSPORT_NCCL_TRANSFER_TABLE_H_
#define FERRY_TRANSPORT_NCCL_TRANSFER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

enum class TransferPhase {
  kPending,         // waits for its turn, or for the peer to grant it
  kGranted,         // in a grant without an answer
  kAgreed,          // in the queue
  kLaunched,        // with the executor
  kUnacknowledged,  // sent; the receiver has not acknowledged it yet
};

// One transfer, as one of its two devices sees it.
struct TransferState {
  uint64_t bytes = 0;
  absl::Time since;
  // When to check it next, and whether that was done once.
  absl::Time deadline;
  bool is_overdue = false;
  TransferPhase phase = TransferPhase::kPending;
  // While pending: its position among the peer's transfers.
  uint64_t order = 0;
  // While granted: its final status if the peer rejects it. OK: use the peer's status.
  absl::Status end_reason;

  template <typename H>
  friend H AbslHashValue(H state, const TransferState& t) {
    return H::combine(std::move(state), t.bytes, static_cast<int>(t.phase),
                      t.end_reason.raw_code());
  }
};

// Finds the transfers by key, by deadline, and, while they are pending, by peer in the order in
// which they were added; keeps the three consistent. Not thread-safe; a value.
class TransferTable final {
 public:
  using Transfers = absl::btree_map<TransferKey, TransferState>;

  explicit TransferTable(DeviceId self) : self_(self) {}

  // The device at the other end. REQUIRES: `key` is between this device and another one.
  DeviceId PeerOf(const TransferKey& key) const {
    return key.source == self_ ? key.destination : key.source;
  }
  // Adds a pending transfer.
  //   Errors: INVALID_ARGUMENT: it is not between this device and another one, or was added
  //   already.
  absl::Status Add(const BatchAgreementTransfer& transfer, absl::Time now);
  // Null: there is no such transfer, or it is over.
  const TransferState* Find(const TransferKey& key) const;
  bool contains(const TransferKey& key) const { return transfers_.contains(key); }

  // The following REQUIRE that the transfer is here.
  const TransferState& At(const TransferKey& key) const;
  // A transfer that becomes pending again gets its old position back. Returns the transfer.
  const TransferState& SetPhase(const TransferKey& key, TransferPhase phase);
  void SetEndReason(const TransferKey& key, const absl::Status& why);
  // Returns the reason, and resets it.
  absl::Status TakeEndReason(const TransferKey& key);
  void SetDeadline(const TransferKey& key, absl::Time deadline);
  // Marks it as overdue. Returns true if it already was.
  bool SetOverdue(const TransferKey& key);
  void Remove(const TransferKey& key);

  bool HasPending(DeviceId peer) const { return pending_.contains(peer); }
  // Pending transfers with the peer, oldest first.
  std::vector<TransferKey> PendingWith(DeviceId peer) const;
  // The oldest pending transfers with the peer that fit in one batch; the first one always fits.
  std::vector<TransferKey> OldestPending(DeviceId peer, size_t max_count, uint64_t max_bytes) const;
  // Number of pending transfers with the same peer ahead of it.
  size_t PositionOf(const TransferKey& key) const;

  absl::Time NextDeadline() const;
  std::vector<TransferKey> DueAt(absl::Time now) const;

  const Transfers& transfers() const { return transfers_; }
  size_t deadline_count() const { return by_deadline_.size(); }
  // Counted in the order of each peer, and by phase: the two are equal.
  size_t queued_count() const;
  size_t pending_count() const;

  // Time aside.
  template <typename H>
  friend H AbslHashValue(H state, const TransferTable& table) {
    for (const auto& [peer, keys] : table.pending_) {
      state = H::combine(std::move(state), peer);
      for (const auto& [order, key] : keys) state = H::combine(std::move(state), key);
    }
    return H::combine(std::move(state), table.transfers_);
  }

 private:
  // Removes a pending transfer from its peer's row.
  void Unqueue(const TransferKey& key, const TransferState& transfer);

  // Constant after construction.
  DeviceId self_;

  Transfers transfers_;
  absl::btree_set<std::pair<absl::Time, TransferKey>> by_deadline_;
  // By peer, in the order in which they were added.
  absl::btree_map<DeviceId, absl::btree_map<uint64_t, TransferKey>> pending_;
  uint64_t last_order_ = 0;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_TRANSFER_TABLE_H_
