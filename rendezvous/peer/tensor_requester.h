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
#include "absl/container/flat_hash_set.h"

#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/peer/tensor_responder.h"
#include "rendezvous/remote_rendezvous.h"

namespace ferry {

// For one incarnation of a producer. Thread-safe. Requests are queued until there is a control
// channel. Each ends with its value, the producer's error, its cancellation, or the closing of the
// control channel. The On... methods are called on the loop, like those of ControlHandler.
class TensorRequester final : public std::enable_shared_from_this<TensorRequester> {
 public:
  TensorRequester(const TransferContext& exchange, Endpoint producer);
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
  void OnOpen(std::shared_ptr<ControlChannel> channel) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnFrame(uint16_t type, absl::string_view body, absl::Span<UniqueFd> descriptors);
  void OnClosed(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A request, and the caller's handle. All but the first three fields are guarded by the
  // requester's lock; `done` and `destination` belong to the thread that removed it from
  // `waiting_`.
  struct Waiting final : public RemoteFetch {
    void Cancel() override;
    std::string Phase() const override;

    std::weak_ptr<TensorRequester> client;
    uint64_t id = 0;
    int64_t step_id = 0;
    RecvCallback done;
    // Requested location: the memory, and the buffer in it. Transports and transfer descriptors
    // deliver there if they can, otherwise to host memory, from where the caller copies it.
    TensorLocation place;
    Destination destination;
    // For a request queued until there is a control channel.
    std::string key;
    // "step 7, KEY", for errors; only if checksums are on.
    std::string name;
    // The key, for the log; only if that is enabled.
    std::string logged_key;
    // For one that may be rejected after its producer has forgotten it: with checksums, with a
    // destination buffer, or if it may arrive over a forbidden path.
    std::string rejected_key;
    bool may_reject() const { return !rejected_key.empty(); }
    bool is_taking = false;
    // A transport failed to bring it, and it was requested again.
    bool is_again = false;
    size_t transport = 0;
  };
  using WaitingPtr = std::shared_ptr<Waiting>;

  absl::Status OnReadyToSend(absl::string_view body, absl::Span<UniqueFd> descriptors);
  // For a tensor inline in the descriptor.
  absl::Status OnInlineReadyToSend(const ReadyToSendMessage& rts) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnError(absl::string_view body);
  // Checks and decodes a fetched tensor. `name`: the request's, if it has one.
  //   has_checked_values: the transport has already called CheckValues.
  //   ends_connection: set to true if the peer cannot be used any more: close the channel after
  //   telling it that the tensor was rejected.
  absl::Status Unpack(const ReadyToSendMessage& rts, absl::StatusOr<Tensor> tensor,
                      bool has_checked_values, absl::string_view path, absl::string_view name,
                      Received& received, bool& ends_connection);
  // Requests a tensor again that a transport failed to bring, if it is still needed.
  bool AskAgain(uint64_t id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops what transports other than number `but` kept for retries of it.
  void ForgetTries(uint64_t id, size_t but);
  // Removes a request; null: it has ended.
  WaitingPtr TakeOut(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  void Complete(uint64_t id, absl::Status status, Received received) ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  void Done(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Instead of Done: tells the producer that its value was not accepted, and why.
  void Reject(uint64_t id, const Waiting* waiting, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Logs the outcome of a request. `path`: if it succeeded.
  void LogEnd(const Waiting& waiting, absl::string_view path, const absl::Status& status) const;
  // Logs that a view's acknowledgement is sent when nothing else of the request is left.
  void ExpectAcknowledgement(const Waiting& waiting) ABSL_LOCKS_EXCLUDED(mu_);
  void LogAcknowledgement(uint64_t id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends CANCEL or ACK, without which the producer would keep something forever.
  void Tell(ControlChannel& channel, PeerMessageType type, uint64_t id);
  // Adds the producer's name.
  absl::Status Named(const absl::Status& why) const;
  std::string Phase(uint64_t id) const ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<ControlChannel> channel() const ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const TransferContext& exchange_;
  const Endpoint producer_;
  // Loop thread only, until there is a control channel.
  std::vector<std::shared_ptr<TransportReceiver>> receivers_;
  const std::shared_ptr<PathCostEstimator> costs_;

  std::atomic<bool> is_over_{false};
  mutable SpinLock mu_;
  std::shared_ptr<ControlChannel> channel_ ABSL_GUARDED_BY(mu_);
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  std::string descriptors_unavailable_reason_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, WaitingPtr> waiting_ ABSL_GUARDED_BY(mu_);
  // Cancelled requests whose answer is still outstanding.
  absl::flat_hash_set<uint64_t> cancelled_ ABSL_GUARDED_BY(mu_);
  // For the log, and empty unless that is enabled: step and key of received tensors that are not
  // acknowledged yet.
  absl::flat_hash_map<uint64_t, std::pair<int64_t, std::string>> unacknowledged_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_TENSOR_REQUESTER_H_
