// SPDX-License-Identifier: Apache-2.0
// TensorResponder: the producer's end of a control channel; answers requests with transfer
// descriptors.
#ifndef FERRY_RENDEZVOUS_PEER_TENSOR_RESPONDER_H_
#define FERRY_RENDEZVOUS_PEER_TENSOR_RESPONDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"

#include "base/clock.h"
#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/key_cache.h"
#include "rendezvous/peer/ack_tracker.h"
#include "rendezvous/peer/latency_probe.h"
#include "rendezvous/peer/peer_protocol.h"
#include "rendezvous/rendezvous_manager.h"
#include "transport/transports.h"

namespace ferry {

// Shared by both ends of all control channels; outlives them.
struct TransferContext {
  Endpoint self;
  RendezvousManager* manager = nullptr;
  TransportList* transports = nullptr;
  PathPolicy policy;
  // Why this process cannot share memory with others on its host; empty: it can.
  std::string why_no_shared_memory;
  // Every transfer carries a checksum of its bytes, and so does every frame of a control channel.
  // Either side can enable it for a control channel, in both directions; a consumer for everything
  // that it receives.
  bool checksum = false;
  // For tensors in GPU memory; null: this process uses no GPUs.
  Gpus* gpus = nullptr;
  // Clock for cost measurements.
  const Clock* clock = &SteadyClock();
  // Timeout for a peer's HELLO, and for an obstacle to a control channel to disappear.
  absl::Duration connect_timeout = absl::Seconds(10);
};

// For one consumer. A value that it has requested is sent to it; if it disconnects, values not yet
// matched stay for others. The On... methods are called on the loop, like those of ControlHandler.
class TensorResponder final : public std::enable_shared_from_this<TensorResponder> {
 public:
  // `sends_checksums`: the control channel checksums frames, so transfers carry checksums.
  // `descriptors_unavailable_reason`: if the control channel passes none.
  TensorResponder(const TransferContext& exchange, Endpoint consumer, bool sends_checksums,
                  std::string descriptors_unavailable_reason, std::shared_ptr<LatencyProbe> ping);
  ~TensorResponder();

  void OnOpen(std::shared_ptr<ControlChannel> channel);
  absl::Status OnFrame(uint16_t type, absl::string_view body, absl::Span<UniqueFd> descriptors);
  void OnClosed(const absl::Status& why);

  // Tensors that are exposed, not received yet, and would be lost if this process exited now.
  size_t unfinished() const ABSL_LOCKS_EXCLUDED(mu_);
  const Endpoint& consumer() const { return consumer_; }
  // The path of a tensor of `bytes` in host memory to the consumer, and why not others. Also starts
  // a latency measurement of the control channel, for the next call.
  //   Errors: as ExplainPath.
  absl::StatusOr<PathExplanation> PathTo(size_t bytes, bool is_in_arena) const;
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

 private:
  // A request that waits for its value, or whose value is being sent.
  struct Request {
    Request(std::shared_ptr<TensorResponder> server, const RequestMessage& message,
            const RendezvousKey& key)
        : server(std::move(server)),
          id(message.id),
          step_id(message.step_id),
          may_reject(message.may_reject),
          key(key) {}

    // Set until there is a value; kept here so that the callback captures only a pointer to this.
    std::shared_ptr<TensorResponder> server;
    const uint64_t id;
    const int64_t step_id;
    const bool may_reject;
    const RendezvousKey key;
    CancellationToken cancellation;
    // From taking the value until this request is released, since the value has arrived or is lost,
    // or until the value outlives this process.
    StepOperation operation;
  };
  using RequestPtr = std::shared_ptr<Request>;
  // A tensor being sent to a consumer.
  struct Outgoing {
    RequestPtr request;
    Tensor tensor;
    bool is_serialized = false;
    // A copy of a tensor in GPU memory.
    bool is_staged = false;
    // A transport has turned out not to work for it.
    bool is_second_choice = false;
    // Number of times that a transport failed to bring it.
    int failed_tries = 0;
  };
  // A tensor exposed to the consumer by the selected transport.
  struct Offered {
    // Index in the list; kStaging: still being copied out of GPU memory.
    size_t transport = 0;
    RequestPtr request;
    size_t tensor_bytes = 0;
    absl::Time since;
    // For transfers that may be retried.
    std::shared_ptr<Outgoing> again;
    // The transfer descriptor was sent.
    bool is_told = false;
    // For transfers whose duration is a cost sample.
    absl::Time start = absl::InfiniteFuture();
  };

  static constexpr size_t kStaging = SIZE_MAX;
  // True if it can still be fetched after this process has exited.
  bool Outlives(const Offered& offered) const;

  absl::Status OnRequest(absl::string_view body);
  absl::Status OnControlMessage(absl::string_view body);
  // The consumer could not fetch an exposed tensor.
  absl::Status OnRetry(absl::string_view body);
  // The consumer has got a transfer descriptor, but rejects its value.
  absl::Status OnRejected(absl::string_view body);
  void OnDone(uint64_t id, bool was_taken = true);
  void OnCancel(uint64_t id);
  void OnValue(const RequestPtr& request, const absl::Status& status, Received received);
  void Expose(Outgoing outgoing);
  // Copies it to host memory, and exposes that.
  void Stage(Outgoing outgoing);
  // It is no longer being copied out of GPU memory.
  void Unstage(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(uint64_t id, absl::Status status);
  // Its value exists but cannot be sent: reports the error to both sides.
  void Lose(const Request& request, const absl::Status& why);
  // As Lose, when the control channel has closed, so only this side is told.
  void RecordSendFailure(const Request& request, const absl::Status& why);
  absl::Status closed() const ABSL_LOCKS_EXCLUDED(mu_);
  // Describes a local error for the consumer.
  absl::Status Named(const absl::Status& why) const;
  void Send(Request& request, ReadyToSendMessage rts, absl::Span<const int> descriptors)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Removes and returns the operations of completed flushes.
  std::vector<StepOperation> TakeFlushed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns false if the request was cancelled.
  bool Take(const Request& request) ABSL_LOCKS_EXCLUDED(mu_);
  // True if it is small enough to be inline.
  bool GoesInline(const Tensor& tensor, bool is_in_arena) const;
  void SendInline(const Outgoing& outgoing, ReadyToSendMessage rts);
  // Logs the path of such a tensor, and why, if that is new or has changed.
  void LogPath(const PathQuery& query, absl::string_view path) ABSL_LOCKS_EXCLUDED(mu_);
  // For a tensor from here to the consumer; all but its source and destination memory.
  PathQuery Query(size_t bytes, bool is_in_arena, absl::Time now) const;

  // Constant after OnOpen, which is called first.
  const TransferContext& exchange_;
  const Endpoint consumer_;
  const bool sends_checksums_;
  const std::string descriptors_unavailable_reason_;
  const std::shared_ptr<LatencyProbe> ping_;
  std::shared_ptr<ControlChannel> channel_;
  std::vector<std::shared_ptr<TransportSender>> senders_;
  // Loop thread only.
  KeyCache keys_;

  mutable SpinLock mu_;
  // Why it has closed, or OK.
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, RequestPtr> waiting_ ABSL_GUARDED_BY(mu_);
  AckTracker answers_ ABSL_GUARDED_BY(mu_);
  // Pending and timed-out flushes, with their numbers.
  std::vector<std::pair<uint64_t, StepOperation>> flushes_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Offered> offered_ ABSL_GUARDED_BY(mu_);
  // For the log, and empty unless that is enabled: the last path of each kind of tensor, by its
  // size, source and destination memory, and whether it is in an arena.
  absl::flat_hash_map<std::tuple<uint32_t, uint32_t, uint32_t, bool>, std::string> logged_paths_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_TENSOR_RESPONDER_H_
