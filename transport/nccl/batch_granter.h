// SPDX-License-Identifier: Apache-2.0
// BatchGranter: grants batches to peers, and answers theirs, under one device's lock.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_GRANTER_H_
#define FERRY_TRANSPORT_NCCL_BATCH_GRANTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "transport/nccl/batch_agreement_action.h"
#include "transport/nccl/batch_agreement_message.h"
#include "transport/nccl/batch_agreement_state.h"
#include "transport/nccl/batch_agreement_types.h"

namespace ferry {

// The agreement half of the protocol, steps 1 to 3 at BatchAgreementEndpoint: who may append to
// this device's queue next. Its own unanswered grant holds the device's lock; peers' grants, and
// peers with pending transfers, wait for it in one line. While paused it agrees on nothing new.
// Calls take the endpoint's tables, and append actions as those of the endpoint do. Not
// thread-safe; a value.
class BatchGranter final {
 public:
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

  // Makes the peer's pending transfers eligible for a grant, now or in turn. REQUIRES: the peer's
  // id is the larger one.
  void Schedule(const BatchAgreementState& state, DeviceId peer);
  // At the source, with the larger id: proposes it at once if there is nothing else to do.
  void Propose(BatchAgreementState& state, const TransferKey& key, BatchAgreementActions& actions);
  // Grants and answers what is possible now.
  void TakeTurns(BatchAgreementState& state, BatchAgreementActions& actions);

  // Messages of a peer.
  //   Errors: INVALID_ARGUMENT: the grant has come before.
  absl::Status OnGrant(BatchAgreementState& state, const BatchAgreementMessage& grant,
                       BatchAgreementActions& actions);
  // Returns the communicator to break: the peer has acknowledged another batch than was granted.
  std::optional<CommunicatorName> OnAcknowledge(BatchAgreementState& state,
                                                const BatchAgreementMessage& message,
                                                BatchAgreementActions& actions);
  void OnDecline(BatchAgreementState& state, const BatchAgreementMessage& message,
                 BatchAgreementActions& actions);
  void OnResumed(const BatchAgreementState& state, const BatchAgreementMessage& message);

  // As the endpoint's; TakeTurns must follow Resume.
  void Pause(const BatchAgreementState& state, BatchAgreementActions& actions);
  void Resume(const BatchAgreementState& state, BatchAgreementActions& actions);

  // The communicator is open now: answers grants that came before it was.
  void OnOpened(BatchAgreementState& state, const CommunicatorName& name,
                absl::Span<const DeviceId> devices, BatchAgreementActions& actions);
  // The communicator has ended: forgets the grants on it, and returns those of this device.
  std::vector<Grant> OnEnded(const CommunicatorName& name);
  void OnPeerFailed(DeviceId peer);
  void OnPeerJoined(DeviceId peer);

  bool is_paused() const { return is_paused_; }
  // True if nothing is granted.
  bool empty() const { return grants_.empty(); }
  // In the order in which they were sent; at most one unless a rule is disabled.
  absl::Span<const Grant> grants() const { return grants_; }
  // The grant that a transfer is in.
  std::optional<BatchName> GrantOf(const TransferKey& key) const;
  // The device waits for the answer to its grant, and agrees on nothing else.
  bool IsLocked(const BatchAgreementOptions& options) const {
    return options.rules.holds_lock_until_answer && !grants_.empty();
  }
  // The peer has declined because it is paused, and has not resumed yet.
  bool IsHoldingBack(DeviceId peer) const { return holding_back_.contains(peer); }
  // Serial of the last grant from `peer`; a correct peer's increase.
  uint64_t last_serial(DeviceId peer) const {
    const auto found = last_serials_.find(peer);
    return found == last_serials_.end() ? 0 : found->second;
  }
  size_t turn_count() const { return waiting_.size(); }
  size_t parked_count() const { return parked_.size(); }
  size_t declined_count() const { return declined_.size(); }
  size_t holding_back_count() const { return holding_back_.size(); }

  // Repeated grants aside.
  template <typename H>
  friend H AbslHashValue(H state, const BatchGranter& g) {
    return H::combine(std::move(state), g.grants_, g.serial_, g.waiting_, g.parked_, g.is_paused_,
                      g.declined_, g.holding_back_);
  }

 private:
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

  bool MayAgree(const BatchAgreementState& state) const {
    return !is_paused_ && !IsLocked(state.options) &&
           state.queue.size() + grants_.size() < state.options.max_batches;
  }
  void SendGrant(BatchAgreementState& state, DeviceId peer, absl::Span<const TransferKey> keys,
                 const CommunicatorName& name, BatchAgreementActions& actions);
  void GrantPending(BatchAgreementState& state, DeviceId peer, BatchAgreementActions& actions);
  // Answers a grant now, lets it wait, or declines it.
  void Consider(BatchAgreementState& state, const BatchAgreementMessage& grant,
                BatchAgreementActions& actions);
  void Respond(BatchAgreementState& state, const BatchAgreementMessage& grant,
               BatchAgreementActions& actions);
  void Decline(const BatchAgreementMessage& grant, BatchAgreementActions& actions);
  std::vector<Grant>::iterator FindGrant(const BatchAgreementState& state,
                                         const BatchAgreementMessage& answer);
  // The generation that a grant is for.
  static CommunicatorName GenerationOf(const BatchAgreementState& state,
                                       const BatchAgreementMessage& grant);

  // At most one; holding it is holding this device's lock.
  std::vector<Grant> grants_;
  uint64_t serial_ = 0;
  std::vector<Turn> waiting_;
  // Grants on communicators that are not open here yet; at most one per peer.
  std::vector<BatchAgreementMessage> parked_;
  // Serial of the last grant from each peer; a correct peer's increase.
  absl::btree_map<DeviceId, uint64_t> last_serials_;
  bool is_paused_ = false;
  // Peers to notify when the pause ends.
  absl::btree_set<DeviceId> declined_;
  // Peers with larger ids that declined, and will send RESUMED.
  absl::btree_set<DeviceId> holding_back_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_GRANTER_H_
