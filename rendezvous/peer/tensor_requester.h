// SPDX-License-Identifier: Apache-2.0
// TensorRequester: the consumer's end of a control channel; asks a producer for values and takes
// what it offers.
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

// For one producer, in one of its lives. Thread-safe. Requests wait until there is a control
// channel. Every one ends: with its value, the producer's refusal, its cancellation, or the end of
// the control channel. The On... are called on the loop, as those of ControlHandler.
class TensorRequester final : public std::enable_shared_from_this<TensorRequester> {
 public:
  TensorRequester(const TransferContext& exchange, Endpoint producer);
  ~TensorRequester();

  // Asks for a value.
  //   Errors, through `done`: UNAVAILABLE naming the producer, and how far it was; what the
  //   producer says; DATA_LOSS when the checksum does not match; INVALID_ARGUMENT when
  //   args.destination has another type or size than what came.
  std::shared_ptr<RemoteFetch> Request(int64_t step_id, const RendezvousKey& key,
                                       const RecvArgs& args, RecvCallback done);

  // Once it has ended nobody can ask any more.
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mu_);
  // Also that everyone has been told.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  const Endpoint& producer() const { return producer_; }
  // Why its control channel passes no descriptors; empty: it does, or did, or will unless there is
  // a reason.
  void set_why_no_descriptors(std::string why) ABSL_LOCKS_EXCLUDED(mu_);
  std::string why_no_descriptors() const ABSL_LOCKS_EXCLUDED(mu_);
  // "shm", "tcp to ...", "not connected yet": for people.
  std::string DescribeLane() const ABSL_LOCKS_EXCLUDED(mu_);
  // What has come from there, and what that took.
  const std::shared_ptr<PathCostEstimator>& costs() const { return costs_; }
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);
  // Ends its control channel with `why`.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Both sides have said HELLO.
  void OnOpen(std::shared_ptr<ControlChannel> channel) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnFrame(uint16_t type, absl::string_view body, absl::Span<UniqueFd> descriptors);
  void OnClosed(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A request, and its asker's handle. All but the first three belong to the client's lock, and
  // `done` and `destination` to whoever took it out of `waiting_`.
  struct Waiting final : public RemoteFetch {
    void Cancel() override;
    std::string Phase() const override;

    std::weak_ptr<TensorRequester> client;
    uint64_t id = 0;
    int64_t step_id = 0;
    RecvCallback done;
    // Where it is wanted: whose memory, and which part of it. Transports and transfer descriptors
    // bring it there if they can, and otherwise to the host's memory, from where the asker gets it.
    TensorLocation place;
    Destination destination;
    // Of a request that waits for the control channel.
    std::string key;
    // "step 7, KEY", for errors; only if checksums are on.
    std::string name;
    // The key, for the log; only if that tells of it.
    std::string logged_key;
    // Of one that may yet be declined when its producer has forgotten it: with checksums, with a
    // buffer of its own, or where it may come in a way that is forbidden here.
    std::string declined_key;
    bool may_decline() const { return !declined_key.empty(); }
    bool is_taking = false;
    // A transport could not bring it, and it was asked for again.
    bool is_again = false;
    size_t transport = 0;
  };
  using WaitingPtr = std::shared_ptr<Waiting>;

  absl::Status OnTicket(absl::string_view body, absl::Span<UniqueFd> descriptors);
  // Of one that brings its tensor along.
  absl::Status OnInlineTicket(const ReadyToSendMessage& ticket) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnRefusal(absl::string_view body);
  // Checks and decodes what a transfer descriptor has brought. `name`: the request's, if it has
  // one.
  //   has_checked_values: the transport has called CheckValues already.
  //   ends_lane: becomes true where nothing more is to be expected of the peer: to be closed when
  //   it has been told that this was not taken.
  absl::Status Unpack(const ReadyToSendMessage& ticket, absl::StatusOr<Tensor> tensor,
                      bool has_checked_values, absl::string_view path, absl::string_view name,
                      Received& received, bool& ends_lane);
  // Has a tensor offered once more that a transport could not bring, if it is still wanted.
  bool AskAgain(uint64_t id, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // What transports that could not bring it have kept for it, but for number `but`.
  void ForgetTries(uint64_t id, size_t but);
  // Null: nobody waits for it any more.
  WaitingPtr TakeOut(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  void Complete(uint64_t id, absl::Status status, Received received) ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  void Done(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // Instead of Done: the producer hears that its value was not taken, and why.
  void Decline(uint64_t id, const Waiting* waiting, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // For the log: what has become of a request. `path`: if it was done.
  void LogEnd(const Waiting& waiting, absl::string_view path, const absl::Status& status) const;
  // For the log, that of a view being sent when nothing else of the request is left.
  void ExpectAcknowledgement(const Waiting& waiting) ABSL_LOCKS_EXCLUDED(mu_);
  void LogAcknowledgement(uint64_t id, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // CANCEL or DONE, without which the producer would keep something for ever.
  void Tell(ControlChannel& channel, ControlMessage type, uint64_t id);
  // With the producer's name.
  absl::Status Named(const absl::Status& why) const;
  std::string Phase(uint64_t id) const ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<ControlChannel> channel() const ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const TransferContext& exchange_;
  const Endpoint producer_;
  // Of the loop, before there is a control channel.
  std::vector<std::shared_ptr<TransportReceiver>> receivers_;
  const std::shared_ptr<PathCostEstimator> costs_;

  std::atomic<bool> is_over_{false};
  mutable SpinLock mu_;
  std::shared_ptr<ControlChannel> channel_ ABSL_GUARDED_BY(mu_);
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  std::string why_no_descriptors_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, WaitingPtr> waiting_ ABSL_GUARDED_BY(mu_);
  // Requests that nobody waits for any more, and whose answer is still to come.
  absl::flat_hash_set<uint64_t> cancelled_ ABSL_GUARDED_BY(mu_);
  // For the log, and empty unless it tells of them: step and key of tensors that have come and are
  // not acknowledged yet.
  absl::flat_hash_map<uint64_t, std::pair<int64_t, std::string>> unacknowledged_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_TENSOR_REQUESTER_H_
