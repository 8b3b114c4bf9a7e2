// SPDX-License-Identifier: Apache-2.0
// BatchAgreementEndpoint: agrees with other devices' endpoints on batches of NCCL operations.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ENDPOINT_H_
#define FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ENDPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "transport/nccl/batch_agreement_action.h"
#include "transport/nccl/batch_agreement_message.h"
#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// The endpoint of one device. NCCL matches operations by position, so two devices agree on
// everything before they issue it:
//   1  one of them grants an ordered batch; it keeps the right to append to its own device's queue
//      (the device's lock) until it has an answer
//   2  the peer appends the batch to its own queue when its lock is free, replies which operations
//      it accepts, and launches
//   3  the granter appends the accepted operations to its queue, and launches
//   4  the receiver of a tensor replies DONE; then the sender's side is over too
// Of two devices, the one with the smaller id may wait for the other's lock; the other may only try
// whether the lock is free. Each device runs its queue in order. docs/nccl.md explains why this
// cannot deadlock; tests/transport/nccl/ checks it exhaustively for small cases.
//
// Calls append the actions to perform to `actions`: the caller performs them, in this order, after
// the call has returned; there are no callbacks. Not thread-safe; a value. The clock must outlive
// it.
class BatchAgreementEndpoint final {
 public:
  BatchAgreementEndpoint(DeviceId self, const BatchAgreementOptions& options, const Clock& clock)
      : self_(self), options_(options), clock_(&clock) {}

  // Adds a transfer; it ends with one FinishTransfer. At the source, call it when the producer has
  // matched a request; then at the destination, before any later message from the source.
  //   Errors: INVALID_ARGUMENT: it is not between this device and another one, or was added
  //   already.
  absl::Status Add(const BatchAgreementTransfer& transfer, GrantActions& actions);
  // At the destination, when the message that announces the transfer also carries the grant that
  // the source's Add produced for this device.
  //   Errors: also as OnMessage.
  absl::Status AddWithGrant(const BatchAgreementTransfer& transfer,
                            const BatchAgreementMessage& grant, GrantActions& actions);
  // Cancels a transfer. Ends it with `why` unless the peer has agreed to run it: then it is
  // completed or aborted.
  void Cancel(const TransferKey& key, const absl::Status& why, GrantActions& actions);

  // Handles a message from another device's endpoint.
  //   Errors: INVALID_ARGUMENT: it is not for this device, or refers to others.
  absl::Status OnMessage(const BatchAgreementMessage& message, GrantActions& actions);
  // Reports that a launched batch is over. REQUIRES: once for each.
  void Completed(const BatchName& name, const absl::Status& status, GrantActions& actions);

  // Reports that a communicator is ready. `devices`: all of its devices, including this one.
  //   Errors: FAILED_PRECONDITION: the generation has been aborted, or another one is not yet
  //   freed; INVALID_ARGUMENT: its devices.
  absl::Status Open(const CommunicatorName& name, absl::Span<const DeviceId> devices,
                    GrantActions& actions);
  // Ends a communicator for all of its devices: NCCL reported an error, or it is no longer needed.
  void Break(const CommunicatorName& name, const absl::Status& why, GrantActions& actions);
  // The device's process has failed: ends all communicators with it. The device is alive again when
  // a communicator with it is opened, or with PeerJoined.
  void PeerFailed(DeviceId peer, const absl::Status& why, GrantActions& actions);

  // A new process now owns the device. REQUIRES: no further messages from a failed one.
  void PeerJoined(DeviceId peer) {
    dead_.erase(peer);
    last_serials_.erase(peer);
    holding_back_.erase(peer);
    declined_.erase(peer);
  }

  // Agrees on nothing new until Resume. Agreed batches complete meanwhile, which needs no
  // agreement; peers' grants are declined, and this device's own are answered. Then it is quiet,
  // and stays so; reaching that state depends on no device that waits for its Resume.
  void Pause(GrantActions& actions);
  void Resume(GrantActions& actions);

  absl::Time NextDeadline() const;
  // Handles transfers whose deadline has passed.
  void Expire(GrantActions& actions);

  DeviceId self() const { return self_; }
  // Unfinished transfers.
  size_t transfer_count() const { return transfers_.size(); }
  // Agreed batches that are not over, launched or not.
  size_t batch_count() const { return queue_.size(); }
  // True if nothing is pending: no transfer, no batch, no grant.
  bool is_idle() const { return transfers_.empty() && queue_.empty() && grants_.empty(); }
  // Paused, and nothing is agreed or granted.
  bool is_quiet() const { return is_paused_ && queue_.empty() && grants_.empty(); }
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const;
  // One line per transfer: "transfer 7 from device 1 to device 2: 3s, its turn on device 1".
  std::vector<std::string> Pending() const;

  // Serial of the last grant from `peer`; a correct peer's increase.
  uint64_t last_serial(DeviceId peer) const {
    const auto found = last_serials_.find(peer);
    return found == last_serials_.end() ? 0 : found->second;
  }

  // Endpoints with equal states behave the same from now on, time and repeated grants aside.
  template <typename H>
  friend H AbslHashValue(H state, const BatchAgreementEndpoint& e) {
    for (const auto& [peer, keys] : e.pending_) {
      state = H::combine(std::move(state), peer);
      for (const auto& [order, key] : keys) state = H::combine(std::move(state), key);
    }
    // Their position in the queue if the peer declines.
    for (const Grant& grant : e.grants_) {
      for (const BatchAgreementOperation& operation : grant.operations) {
        state = H::combine(std::move(state), e.PlaceOf(operation.key));
      }
    }
    for (const auto& [peer, why] : e.dead_) state = H::combine(std::move(state), peer);
    return H::combine(std::move(state), e.transfers_, e.grants_, e.serial_, e.waiting_, e.parked_,
                      e.queue_, e.unacknowledged_, e.communicators_, e.is_paused_, e.declined_,
                      e.holding_back_);
  }

 private:
  enum class Phase {
    kPending,         // waits for its turn, or for the peer to grant it
    kGranted,         // in a grant without an answer
    kAgreed,          // in the queue
    kLaunched,        // with the executor
    kUnacknowledged,  // sent; the receiver has not acknowledged it yet
  };
  struct Transfer {
    uint64_t bytes = 0;
    absl::Time since;
    // When to check it next, and whether that was done once.
    absl::Time deadline;
    bool is_overdue = false;
    Phase phase = Phase::kPending;
    // While pending: its position among the peer's transfers.
    uint64_t order = 0;
    // While granted: its final status if the peer rejects it. OK: use the peer's status.
    absl::Status end_reason;

    template <typename H>
    friend H AbslHashValue(H state, const Transfer& t) {
      return H::combine(std::move(state), t.bytes, static_cast<int>(t.phase),
                        t.end_reason.raw_code());
    }
  };
  using Transfers = absl::btree_map<TransferKey, Transfer>;

  // A grant of this device, not yet answered.
  struct Grant {
    BatchName name;
    DeviceId peer = kNoDevice;
    std::vector<BatchAgreementOperation> operations;

    template <typename H>
    friend H AbslHashValue(H state, const Grant& grant) {
      return H::combine(std::move(state), grant.name, grant.peer, grant.operations);
    }
  };
  // Needs this device's lock: a peer's grant, or own pending transfers.
  struct Turn {
    DeviceId peer = kNoDevice;
    std::optional<BatchAgreementMessage> grant;

    template <typename H>
    friend H AbslHashValue(H state, const Turn& turn) {
      state = H::combine(std::move(state), turn.peer, turn.grant.has_value());
      return turn.grant.has_value() ? H::combine(std::move(state), *turn.grant) : std::move(state);
    }
  };
  struct Agreed {
    AgreedBatch batch;
    bool is_launched = false;
    // The peer sent DONE before this side completed.
    bool is_done_there = false;

    template <typename H>
    friend H AbslHashValue(H state, const Agreed& agreed) {
      return H::combine(std::move(state), agreed.batch, agreed.is_launched, agreed.is_done_there);
    }
  };
  struct Unacknowledged {
    DeviceId peer = kNoDevice;
    std::vector<TransferKey> keys;

    template <typename H>
    friend H AbslHashValue(H state, const Unacknowledged& sent) {
      return H::combine(std::move(state), sent.peer, sent.keys);
    }
  };
  enum class CommunicatorState { kAbsent, kOpen, kBroken };
  struct Communicator {
    CommunicatorState state = CommunicatorState::kAbsent;
    // Generation of `state`, unless that is kAbsent.
    uint32_t generation = 0;
    // Earlier generations have ended permanently.
    uint32_t lowest = 0;
    std::vector<DeviceId> devices;
    // Peers with which a batch was run.
    absl::btree_set<DeviceId> used;
    // While broken: peers that have sent SETTLED; whether this side has.
    absl::btree_set<DeviceId> settled;
    bool is_settled = false;
    // Reason for the last break.
    absl::Status why;

    template <typename H>
    friend H AbslHashValue(H state, const Communicator& c) {
      return H::combine(std::move(state), static_cast<int>(c.state), c.generation, c.lowest,
                        c.devices, c.used, c.settled, c.is_settled, c.why.raw_code());
    }
  };

  // batch_agreement_endpoint.cc
  DeviceId PeerOf(const TransferKey& key) const {
    return key.source == self_ ? key.destination : key.source;
  }
  // Number of pending transfers with the same peer ahead of it.
  size_t PlaceOf(const TransferKey& key) const;
  absl::Status Insert(const BatchAgreementTransfer& transfer, GrantActions& actions);
  // Removes a pending transfer from its peer's queue, or puts it back in its position.
  void Unqueue(const TransferKey& key, const Transfer& transfer);
  void Requeue(const TransferKey& key, Transfer& transfer);
  void Finish(const TransferKey& key, absl::Status status, GrantActions& actions);
  void SendCancel(DeviceId peer, absl::Span<const TransferKey> keys, const absl::Status& why,
                  GrantActions& actions);
  void OnCancel(const BatchAgreementMessage& message, GrantActions& actions);
  void ExpireOne(const TransferKey& key, absl::Time now, GrantActions& actions);
  std::string WaitsFor(const TransferKey& key, const Transfer& transfer) const;
  // The batch that a transfer is in, or was sent with.
  std::optional<BatchName> BatchOf(const TransferKey& key) const;

  // batch_agreement.cc
  BatchAgreementMessage Message(BatchAgreementMessageKind kind, DeviceId to,
                                const CommunicatorName& name) const;
  // Returns the communicator to use with `peer`; null: none is open.
  const Communicator* Usable(DeviceId peer, CommunicatorName& name) const;
  bool IsLocked() const { return options_.rules.holds_lock_until_answer && !grants_.empty(); }
  bool MayAgree() const {
    return !is_paused_ && !IsLocked() && queue_.size() + grants_.size() < options_.max_batches;
  }
  // Makes the peer's pending transfers eligible for a grant, now or in turn.
  void Schedule(DeviceId peer);
  // At the source, with the larger id: proposes it at once if there is nothing else to do.
  void Propose(const TransferKey& key, GrantActions& actions);
  void SendGrant(DeviceId peer, absl::Span<const TransferKey> keys, const CommunicatorName& name,
                 GrantActions& actions);
  void GrantPending(DeviceId peer, GrantActions& actions);
  void OnGrant(const BatchAgreementMessage& grant, GrantActions& actions);
  void Respond(const BatchAgreementMessage& grant, GrantActions& actions);
  void Decline(const BatchAgreementMessage& grant, GrantActions& actions);
  void OnAcknowledge(const BatchAgreementMessage& message, GrantActions& actions);
  void OnDecline(const BatchAgreementMessage& message, GrantActions& actions);
  void OnDone(const BatchAgreementMessage& message, GrantActions& actions);
  void OnResumed(const BatchAgreementMessage& message);
  std::vector<Grant>::iterator FindGrant(const BatchAgreementMessage& answer);
  void Append(const BatchName& name, DeviceId peer,
              std::vector<BatchAgreementOperation> operations);
  void Launch(GrantActions& actions);
  // Does everything that is possible now.
  void Advance(GrantActions& actions);

  // batch_agreement_failure.cc
  bool IsOpen(const CommunicatorName& name) const;
  // Final status of a transfer with `peer` that was in a batch of `name`.
  absl::Status EndOf(DeviceId peer, const CommunicatorName& name) const;
  struct BreakCause {
    // The device that has failed, if any; the device that reported it, if any.
    DeviceId died = kNoDevice;
    DeviceId told_by = kNoDevice;
  };
  // Breaks the open ones.
  void BreakAll(std::vector<CommunicatorName> names, const absl::Status& why,
                const BreakCause& cause, GrantActions& actions);
  bool HasBatchWith(DeviceId peer) const;
  void DropBatches(const CommunicatorName& name, GrantActions& actions);
  void OnBreak(const BatchAgreementMessage& message, GrantActions& actions);
  void OnSettled(const BatchAgreementMessage& message, GrantActions& actions);
  // Filtered by communicator and by peer, if given.
  void FinishUnacknowledged(std::optional<CommunicatorName> name, std::optional<DeviceId> peer,
                            GrantActions& actions);
  // Sends SETTLED, and frees communicators, where due.
  void Settle(GrantActions& actions);

  // Constant after construction.
  DeviceId self_;
  BatchAgreementOptions options_;
  const Clock* clock_;

  Transfers transfers_;
  absl::btree_set<std::pair<absl::Time, TransferKey>> by_deadline_;
  // By peer, in the order in which they were added.
  absl::btree_map<DeviceId, absl::btree_map<uint64_t, TransferKey>> pending_;
  uint64_t last_order_ = 0;
  // At most one; holding it is holding this device's lock.
  std::vector<Grant> grants_;
  uint64_t serial_ = 0;
  std::vector<Turn> waiting_;
  // Grants on communicators that are not open here yet; at most one per peer.
  std::vector<BatchAgreementMessage> parked_;
  // Launched batches come first.
  std::vector<Agreed> queue_;
  absl::btree_map<BatchName, Unacknowledged> unacknowledged_;
  absl::btree_map<uint64_t, Communicator> communicators_;
  absl::btree_map<DeviceId, absl::Status> dead_;
  // Serial of the last grant from each peer; a correct peer's increase.
  absl::btree_map<DeviceId, uint64_t> last_serials_;
  bool is_paused_ = false;
  // Peers to notify when the pause ends.
  absl::btree_set<DeviceId> declined_;
  // Peers with larger ids that declined, and will send RESUMED.
  absl::btree_set<DeviceId> holding_back_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ENDPOINT_H_
