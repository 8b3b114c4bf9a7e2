// SPDX-License-Identifier: Apache-2.0
// TensorRequester: the consumer's end of a control channel; requests values from a producer and
// fetches them.
#ifndef FERRY_RENDEZVOUS_PEER_TENSOR_REQUESTER_H_
#define FERRY_RENDEZVOUS_PEER_TENSOR_REQUESTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/peer/incoming_transfer.h"
#include "rendezvous/peer/peer_protocol.h"
#include "rendezvous/peer/transfer_context.h"
#include "rendezvous/peer/transport_numbers.h"
#include "rendezvous/remote_rendezvous.h"
#include "transport/path_cost_estimator.h"

namespace ferry {

class EagerInbox;

// For one incarnation of a producer. Thread-safe. Requests are queued until there is a control
// channel. Each ends with its value, the producer's error, its cancellation, or the closing of the
// control channel. The On... methods are called on the loop, like those of ControlHandler.
class TensorRequester final : public std::enable_shared_from_this<TensorRequester> {
 public:
  TensorRequester(const TransferContext& context, Endpoint producer);
  ~TensorRequester();

  // Requests a value.
  //   Errors, through `done`: UNAVAILABLE naming the producer and the phase; the producer's error;
  //   DATA_LOSS when the checksum does not match; INVALID_ARGUMENT when args.destination has
  //   another type or size than the value.
  std::shared_ptr<RemoteFetch> Request(int64_t step_id, const RendezvousKey& key,
                                       const RecvArgs& args, RecvCallback done);

  // True once closed: no more requests can be made.
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mu_);
  // True once closed and all callbacks have run.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  const Endpoint& producer() const { return producer_; }
  // Why its control channel passes no descriptors; empty: it does, did, or is expected to.
  void set_descriptors_unavailable_reason(std::string why) ABSL_LOCKS_EXCLUDED(mu_);
  std::string descriptors_unavailable_reason() const ABSL_LOCKS_EXCLUDED(mu_);
  // Human-readable: "shm", "tcp to ...", "not connected yet".
  std::string DescribeChannel() const ABSL_LOCKS_EXCLUDED(mu_);
  // Costs of transfers from the producer.
  const std::shared_ptr<PathCostEstimator>& costs() const { return costs_; }
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);
  // Closes its control channel with `why`.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Both sides have sent HELLO.
  //   transports: those of the producer's HELLO.
  //   is_eager: the producer may send values before they are requested.
  void OnOpen(std::shared_ptr<ControlChannel> channel, std::vector<TransportDescription> transports,
              bool is_eager = false) ABSL_LOCKS_EXCLUDED(mu_);
  //   acknowledge: called for values of the other direction that the frame acknowledges.
  absl::Status OnFrame(
      uint16_t type, absl::string_view body, absl::Span<UniqueFd> descriptors,
      absl::FunctionRef<absl::Status(const EagerRange&)> acknowledge = [](const EagerRange&) {
        return absl::OkStatus();
      });
  // As OnFrame for each of them, which are all EAGER, up to the first error. REQUIRES: there is
  // one.
  absl::Status OnEager(absl::Span<const ControlFrame> frames,
                       absl::FunctionRef<absl::Status(const EagerRange&)> acknowledge);
  void OnClosed(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // For its transfers.
  const TransferContext& context() const { return context_; }
  // By their numbers, from 1.
  const Transport& transport(size_t number) const { return *(*context_.transports)[number - 1]; }
  TransportReceiver& receiver(size_t number) const { return *receivers_[number - 1]; }
  // Removes a transfer whose fetch is over. Returns false if its caller has cancelled it, or the
  // channel has closed.
  bool Finish(IncomingTransfer& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  // Requests a tensor again that a transport failed to bring. Returns false if it is not needed.
  bool Retry(IncomingTransfer& transfer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(IncomingTransfer& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  std::string PhaseOf(const IncomingTransfer& transfer) const ABSL_LOCKS_EXCLUDED(mu_);
  // The producer may reuse the tensor's memory.
  void Acknowledge(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Instead of Acknowledge: tells the producer that its value was not accepted, and why.
  //   transfer: for one that is inline, which the producer has forgotten; else null.
  void Reject(uint64_t id, const IncomingTransfer* transfer, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Logs that a view's acknowledgement is sent when nothing else of the request is left.
  void ExpectAcknowledgement(const IncomingTransfer& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds the producer's name.
  absl::Status Named(const absl::Status& why) const;

 private:
  absl::Status OnReadyToSend(absl::string_view body, absl::Span<UniqueFd> descriptors);
  // For an inline tensor, whose bytes are in the RTS.
  absl::Status OnInlineReadyToSend(const ReadyToSendMessage& rts) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnError(absl::string_view body);
  // Ends a request with an error, unless it has ended.
  void End(uint64_t id, absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops what transports other than number `except` kept for retries of it.
  void CancelOtherAttempts(uint64_t id, size_t except);
  void LogAcknowledgement(uint64_t id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends CANCEL or ACK, without which the producer would keep something forever.
  void SendCancelOrAck(ControlChannel& channel, PeerMessageType type, uint64_t id);
  std::shared_ptr<ControlChannel> channel() const ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const TransferContext& context_;
  const Endpoint producer_;
  // Null: everything is requested.
  EagerInbox* const inbox_;
  // Loop thread only: the control channel on which the producer may send values before they are
  // requested; null: there is none.
  std::shared_ptr<ControlChannel> eager_channel_;
  // Loop thread only, until there is a control channel.
  TransportNumbers numbers_;
  // By index in the list; null where the producer lacks the transport.
  std::vector<std::shared_ptr<TransportReceiver>> receivers_;
  const std::shared_ptr<PathCostEstimator> costs_;

  std::atomic<bool> is_over_{false};
  mutable SpinLock mu_;
  std::shared_ptr<ControlChannel> channel_ ABSL_GUARDED_BY(mu_);
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  std::string descriptors_unavailable_reason_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  // By id. Those that are not finished.
  absl::flat_hash_map<uint64_t, IncomingTransferPtr> transfers_ ABSL_GUARDED_BY(mu_);
  // For the log, and empty unless that is enabled: step and key of received tensors that are not
  // acknowledged yet.
  absl::flat_hash_map<uint64_t, std::pair<int64_t, std::string>> unacknowledged_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_TENSOR_REQUESTER_H_
