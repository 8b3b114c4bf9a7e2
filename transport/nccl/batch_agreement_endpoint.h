// SPDX-License-Identifier: Apache-2.0
// BatchAgreementEndpoint: agrees with other devices' endpoints on batches of NCCL operations.
#ifndef FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ENDPOINT_H_
#define FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "base/clock.h"
#include "base/table_sizes.h"
#include "transport/nccl/batch_agreement_action.h"
#include "transport/nccl/batch_agreement_message.h"
#include "transport/nccl/batch_agreement_state.h"
#include "transport/nccl/batch_agreement_types.h"
#include "transport/nccl/batch_granter.h"

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
// The endpoint receives the messages and decides how transfers end: by completion, cancellation,
// deadline or failure. BatchGranter performs steps 1 to 3, CommunicatorTable the life cycle of
// communicators; TransferTable and BatchQueue hold the rest.
//
// Calls append the actions to perform to `actions`: the caller performs them, in this order, after
// the call has returned; there are no callbacks. Not thread-safe; a value. The clock must outlive
// it.
class BatchAgreementEndpoint final {
 public:
  BatchAgreementEndpoint(DeviceId self, const BatchAgreementOptions& options, const Clock& clock)
      : clock_(&clock), state_(self, options) {}

  // Adds a transfer; it ends with one FinishTransfer. At the source, call it when the producer has
  // matched a request; then at the destination, before any later message from the source.
  //   Errors: INVALID_ARGUMENT: it is not between this device and another one, or was added
  //   already.
  absl::Status Add(const BatchAgreementTransfer& transfer, BatchAgreementActions& actions);
  // At the destination, when the message that announces the transfer also carries the grant that
  // the source's Add produced for this device.
  //   Errors: also as OnMessage.
  absl::Status AddWithGrant(const BatchAgreementTransfer& transfer,
                            const BatchAgreementMessage& grant, BatchAgreementActions& actions);
  // Cancels a transfer. Ends it with `why` unless the peer has agreed to run it: then it is
  // completed or aborted.
  void Cancel(const TransferKey& key, const absl::Status& why, BatchAgreementActions& actions);

  // Handles a message from another device's endpoint.
  //   Errors: INVALID_ARGUMENT: it is not for this device, or refers to others.
  absl::Status OnMessage(const BatchAgreementMessage& message, BatchAgreementActions& actions);
  // Reports that a launched batch is over. REQUIRES: once for each.
  void Completed(const BatchName& name, const absl::Status& status, BatchAgreementActions& actions);

  // Reports that a communicator is ready. `devices`: all of its devices, including this one.
  //   Errors: FAILED_PRECONDITION: the generation has been aborted, or another one is not yet
  //   freed; INVALID_ARGUMENT: its devices.
  absl::Status Open(const CommunicatorName& name, absl::Span<const DeviceId> devices,
                    BatchAgreementActions& actions);
  // Ends a communicator for all of its devices: NCCL reported an error, or it is no longer needed.
  void Break(const CommunicatorName& name, const absl::Status& why, BatchAgreementActions& actions);
  // The device's process has failed: ends all communicators with it. The device is alive again when
  // a communicator with it is opened, or with PeerJoined.
  void PeerFailed(DeviceId peer, const absl::Status& why, BatchAgreementActions& actions);

  // A new process now owns the device. REQUIRES: no further messages from a failed one.
  void PeerJoined(DeviceId peer) {
    state_.communicators.MarkAlive(peer);
    granter_.OnPeerJoined(peer);
  }

  // Agrees on nothing new until Resume. Agreed batches complete meanwhile, which needs no
  // agreement; peers' grants are declined, and this device's own are answered. Then it is quiet,
  // and stays so; reaching that state depends on no device that waits for its Resume.
  void Pause(BatchAgreementActions& actions) { granter_.Pause(state_, actions); }
  void Resume(BatchAgreementActions& actions);

  absl::Time NextDeadline() const { return state_.transfers.NextDeadline(); }
  // Handles transfers whose deadline has passed.
  void Expire(BatchAgreementActions& actions);

  DeviceId self() const { return state_.self; }
  // Unfinished transfers.
  size_t transfer_count() const { return state_.transfers.transfers().size(); }
  // Agreed batches that are not over, launched or not.
  size_t batch_count() const { return state_.queue.size(); }
  // True if nothing is pending: no transfer, no batch, no grant.
  bool is_idle() const { return transfer_count() == 0 && is_nothing_agreed(); }
  // Paused, and nothing is agreed or granted.
  bool is_quiet() const { return granter_.is_paused() && is_nothing_agreed(); }
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const;
  // One line per transfer: "transfer 7 from device 1 to device 2: 3s, its turn on device 1".
  std::vector<std::string> Pending() const;

  // Serial of the last grant from `peer`; a correct peer's increase.
  uint64_t last_serial(DeviceId peer) const { return granter_.last_serial(peer); }

  // Endpoints with equal states behave the same from now on, time and repeated grants aside.
  template <typename H>
  friend H AbslHashValue(H state, const BatchAgreementEndpoint& e) {
    // Their position in the queue if the peer declines.
    for (const BatchGranter::Grant& grant : e.granter_.grants()) {
      for (const BatchAgreementOperation& operation : grant.operations) {
        state = H::combine(std::move(state), e.state_.transfers.PositionOf(operation.key));
      }
    }
    return H::combine(std::move(state), e.state_, e.granter_);
  }

 private:
  bool is_nothing_agreed() const { return state_.queue.empty() && granter_.empty(); }
  DeviceId PeerOf(const TransferKey& key) const { return state_.transfers.PeerOf(key); }

  // Adds the transfer; it ends at once if the peer has failed.
  absl::Status Insert(const BatchAgreementTransfer& transfer, BatchAgreementActions& actions);
  // Ends it, or its grant if the peer rejects that. Returns false if the peer has agreed to run it.
  bool EndUnlessAgreed(const TransferKey& key, const absl::Status& why,
                       BatchAgreementActions& actions);
  void SendCancel(DeviceId peer, absl::Span<const TransferKey> keys, const absl::Status& why,
                  BatchAgreementActions& actions);
  void ExpireOne(const TransferKey& key, absl::Time now, BatchAgreementActions& actions);
  std::string WaitsFor(const TransferKey& key, const TransferState& transfer) const;
  // The batch that a transfer is in, or was sent with.
  std::optional<BatchName> BatchOf(const TransferKey& key) const;

  absl::Status Dispatch(const BatchAgreementMessage& message, BatchAgreementActions& actions);
  void OnAcknowledge(const BatchAgreementMessage& message, BatchAgreementActions& actions);
  void OnCancel(const BatchAgreementMessage& message, BatchAgreementActions& actions);
  void OnDone(const BatchAgreementMessage& message, BatchAgreementActions& actions);
  void OnBreak(const BatchAgreementMessage& message, BatchAgreementActions& actions);
  void OnSettled(const BatchAgreementMessage& message, BatchAgreementActions& actions);

  // Breaks the open ones, and ends what was agreed on them.
  void BreakAll(absl::Span<const CommunicatorName> names, const absl::Status& why,
                const CommunicatorTable::BreakCause& cause, BatchAgreementActions& actions);
  // Ends what was granted or agreed on it, except for launched batches, which complete soon.
  void DropBatches(const CommunicatorName& name, BatchAgreementActions& actions);
  // Filtered by communicator and by peer, if given.
  void FinishUnacknowledged(std::optional<CommunicatorName> name, std::optional<DeviceId> peer,
                            BatchAgreementActions& actions);
  // Does everything that is possible now.
  void Advance(BatchAgreementActions& actions);

  // Constant after construction.
  const Clock* clock_;

  BatchAgreementState state_;
  BatchGranter granter_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_BATCH_AGREEMENT_ENDPOINT_H_
