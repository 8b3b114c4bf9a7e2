// SPDX-License-Identifier: Apache-2.0
// TensorResponder: the producer's end of a control channel; answers requests with transfer
// descriptors.
#ifndef FERRY_RENDEZVOUS_PEER_TENSOR_RESPONDER_H_
#define FERRY_RENDEZVOUS_PEER_TENSOR_RESPONDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"

#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/key_cache.h"
#include "rendezvous/peer/ack_tracker.h"
#include "rendezvous/peer/latency_probe.h"
#include "rendezvous/peer/outgoing_transfer.h"
#include "rendezvous/peer/path_selector.h"
#include "rendezvous/peer/peer_protocol.h"
#include "rendezvous/peer/transfer_context.h"
#include "rendezvous/peer/transport_numbers.h"
#include "rendezvous/rendezvous_manager.h"
#include "transport/transports.h"

namespace ferry {

class EagerOutbox;

// For one consumer. A value that it has requested is sent to it; if it disconnects, values not yet
// matched stay for others. The On... methods are called on the loop, like those of ControlHandler.
class TensorResponder final : public std::enable_shared_from_this<TensorResponder> {
 public:
  // `sends_checksums`: the control channel checksums frames, so transfers carry checksums.
  // `descriptors_unavailable_reason`: if the control channel passes none.
  TensorResponder(const TransferContext& context, Endpoint consumer, bool sends_checksums,
                  std::string descriptors_unavailable_reason, std::shared_ptr<LatencyProbe> ping);
  ~TensorResponder();

  //   limits: the consumer receives values before it requests them; none: it does not.
  void OnOpen(std::shared_ptr<ControlChannel> channel,
              const std::optional<EagerLimits>& limits = {});
  absl::Status OnFrame(uint16_t type, absl::string_view body, absl::Span<UniqueFd> descriptors);
  void OnClosed(const absl::Status& why);

  // Tensors that are exposed, not received yet, and would be lost if this process exited now.
  size_t unfinished() const ABSL_LOCKS_EXCLUDED(mu_);
  const Endpoint& consumer() const { return consumer_; }
  // An EAGER of the other direction acknowledges those values.
  absl::Status OnEagerAcknowledged(const EagerRange& range);
  // The path of a tensor of `bytes` in host memory to the consumer, and why not others. Also starts
  // a latency measurement of the control channel, for the next call.
  //   Errors: as ExplainPath.
  absl::StatusOr<PathExplanation> PathTo(size_t bytes, bool is_in_arena) const {
    return paths_.Explain(bytes, is_in_arena);
  }
  // Starts a flush: it ends when the consumer has received all transfer descriptors sent so far in
  // that step that it may reject, except those that ForEachTransfer reports until they are
  // answered. Returns nothing if it has, if the control channel has closed, or if the peer must not
  // be waited for, since the last flush timed out. `operation` ends when the flush is over.
  std::optional<uint64_t> StartFlush(int64_t step_id, StepOperation operation = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  // True if the flush with that number is over.
  bool IsFlushed(uint64_t flush) const ABSL_LOCKS_EXCLUDED(mu_);
  // Waiting for that flush has timed out.
  void GiveUpFlush(uint64_t flush) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnFlushed(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Human-readable: "shm", "tcp to ...".
  std::string DescribeChannel() const { return channel_->Describe(); }
  // Visits transfers exposed at least `min_age` ago that were not received or not released yet.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

  // For its transfers.
  const TransferContext& context() const { return context_; }
  bool sends_checksums() const { return sends_checksums_; }
  PathSelector& paths() { return paths_; }
  ControlChannel& channel() const { return *channel_; }
  TransportSender& sender(size_t transport) const { return *senders_[transport]; }
  // Why the control channel has closed, or OK.
  absl::Status closed() const ABSL_LOCKS_EXCLUDED(mu_);
  // The transfer gets its value, and leaves the table. Returns false if the request was cancelled.
  bool Match(OutgoingTransfer& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  // As Match, for a value that is about to be sent by that transport without a copy or a wait: the
  // transfer stays in the table, in kExposed.
  bool MatchExposed(OutgoingTransfer& transfer, size_t transport, size_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Undoes that, as if by Match: it was not sent. Returns false if it was ended meanwhile.
  bool Unexpose(OutgoingTransfer& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  // Puts a transfer into the table, or leaves it there, in that state.
  //   Errors: as closed(); the transfer is then unchanged.
  absl::Status List(const OutgoingTransferPtr& transfer, OutgoingState state, size_t transport,
                    size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void Unlist(const OutgoingTransfer& transfer) ABSL_LOCKS_EXCLUDED(mu_);
  // The RTS of a value that the consumer may reject has been sent.
  void TrackSentRts(OutgoingTransfer& transfer, bool is_view) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers a request with an error.
  void Refuse(uint64_t id, absl::Status status);
  // Describes a local error for the consumer.
  absl::Status Named(const absl::Status& why) const;

 private:
  absl::Status OnRequest(absl::string_view body);
  absl::Status OnNamedRequest(absl::string_view body);
  // The consumer waits for the end of a step.
  absl::Status OnWatch(absl::string_view body);
  absl::Status StartTransfer(const RequestMessage& message, const RendezvousKey& key)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnControlMessage(absl::string_view body);
  // The consumer could not fetch an exposed tensor.
  absl::Status OnRetry(absl::string_view body);
  // The consumer has got a transfer descriptor, but rejects its value.
  absl::Status OnRejected(absl::string_view body);
  void OnAck(uint64_t id, bool was_received = true);
  void OnCancel(uint64_t id);
  // Removes and returns a listed transfer whose RTS the consumer has; null: there is none.
  OutgoingTransferPtr TakeSent(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes and returns the operations of completed flushes.
  std::vector<StepOperation> TakeFlushed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after OnOpen, which is called first.
  const TransferContext& context_;
  const Endpoint consumer_;
  // Null: everything is requested.
  EagerOutbox* const outbox_;
  const TransportNumbers numbers_;
  const bool sends_checksums_;
  const std::shared_ptr<LatencyProbe> ping_;
  PathSelector paths_;
  std::shared_ptr<ControlChannel> channel_;
  // By index in the list; null where the consumer lacks the transport.
  std::vector<std::shared_ptr<TransportSender>> senders_;
  // Loop thread only.
  KeyCache keys_;

  mutable SpinLock mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  // Those that wait for their value, are being staged or exposed, or have been sent and not
  // received yet, by request.
  absl::flat_hash_map<uint64_t, OutgoingTransferPtr> transfers_ ABSL_GUARDED_BY(mu_);
  AckTracker answers_ ABSL_GUARDED_BY(mu_);
  // Pending and timed-out flushes, with their numbers.
  std::vector<std::pair<uint64_t, StepOperation>> flushes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_TENSOR_RESPONDER_H_
