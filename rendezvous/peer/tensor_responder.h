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

// What both ends of control channels have in common; outlives them.
struct TransferContext {
  Endpoint self;
  RendezvousManager* manager = nullptr;
  TransportList* transports = nullptr;
  PathPolicy policy;
  // Why this process cannot share memory with others of its host; empty if it can.
  std::string why_no_shared_memory;
  // Every transfer carries a checksum of its bytes, and so does every frame of a control channel.
  // Either side can ask for it, for the transfer descriptors of a control channel; the consumer for
  // all of it.
  bool checksum = false;
  // For tensors in their memory; null: this process uses none.
  Gpus* gpus = nullptr;
  // Of costs.
  const Clock* clock = &SteadyClock();
  // For a peer to say HELLO; and for what stands in the way of a control channel to go.
  absl::Duration connect_timeout = absl::Seconds(10);
};

// For one consumer. A value for which it has asked goes to it; if it goes away, what it waits for
// stays for others. The On... are called on the loop, as those of ControlHandler.
class TensorResponder final : public std::enable_shared_from_this<TensorResponder> {
 public:
  // `sends_seals`: through the control channel, and so there are checksums of what is sent.
  // `why_no_descriptors`: if the control channel passes none.
  TensorResponder(const TransferContext& exchange, Endpoint consumer, bool sends_seals,
                  std::string why_no_descriptors, std::shared_ptr<LatencyProbe> ping);
  ~TensorResponder();

  void OnOpen(std::shared_ptr<ControlChannel> channel);
  absl::Status OnFrame(uint16_t type, absl::string_view body, absl::Span<UniqueFd> descriptors);
  void OnClosed(const absl::Status& why);

  // Tensors that were offered, were not taken yet, and would be lost if this process went now.
  size_t unfinished() const ABSL_LOCKS_EXCLUDED(mu_);
  const Endpoint& consumer() const { return consumer_; }
  // Which way a tensor of `bytes` goes from here, if it lies in the host's memory, and why not
  // another one. Has the control channel's latency measured again, for the next time.
  //   Errors: as ExplainPath.
  absl::StatusOr<PathExplanation> PathTo(size_t bytes, bool is_in_arena) const;
  // Finds out when the consumer has heard all transfer descriptors that were sent in that step so
  // far and that it may decline, but for those that are told of by ForEachTransfer until it has
  // answered them. Nothing: it has, or the control channel has ended, or nobody is to wait for it,
  // since the last who did has given up. `operation` ends when the flush is over.
  std::optional<uint64_t> StartFlush(int64_t step_id, StepOperation operation = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the flush of that number is over.
  bool IsFlushed(uint64_t flush) const ABSL_LOCKS_EXCLUDED(mu_);
  // It was waited for long enough.
  void GiveUpFlush(uint64_t flush) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnFlushed(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  // "shm", "tcp to ...": for people.
  std::string DescribeLane() const { return channel_->Describe(); }
  // What was offered and has not been taken, or not been given back, for at least `min_age`.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A request that waits for its value, or whose value is on its way.
  struct Request {
    Request(std::shared_ptr<TensorResponder> server, const RequestMessage& message,
            const RendezvousKey& key)
        : server(std::move(server)),
          id(message.id),
          step_id(message.step_id),
          may_decline(message.may_decline),
          key(key) {}

    // Until there is a value; here, so that what is called then is no more than a pointer to this.
    std::shared_ptr<TensorResponder> server;
    const uint64_t id;
    const int64_t step_id;
    const bool may_decline;
    const RendezvousKey key;
    CancellationToken cancellation;
    // From when the value was taken until nobody has this request any more, since the value is
    // there or lost, or until the value outlives this process.
    StepOperation operation;
  };
  using RequestPtr = std::shared_ptr<Request>;
  // A tensor that goes to a consumer.
  struct Outgoing {
    RequestPtr request;
    Tensor tensor;
    bool is_serialized = false;
    // It lay in a GPU's memory, and is a copy now.
    bool is_staged = false;
    // A transport has found that it cannot, after all.
    bool is_second_choice = false;
    // How often a transport could not bring it.
    int failed_tries = 0;
  };
  // A tensor that the consumer may take, by the transport that was chosen.
  struct Offered {
    // Of the list; kStaging: it is still on its way out of a GPU's memory.
    size_t transport = 0;
    RequestPtr request;
    size_t tensor_bytes = 0;
    absl::Time since;
    // Of those that may be offered again.
    std::shared_ptr<Outgoing> again;
    // The transfer descriptor is on its way.
    bool is_told = false;
    // Of those whose duration says something.
    absl::Time start = absl::InfiniteFuture();
  };

  static constexpr size_t kStaging = SIZE_MAX;
  // Whether it can still be taken when this process has gone.
  bool Outlives(const Offered& offered) const;

  absl::Status OnRequest(absl::string_view body);
  absl::Status OnReply(absl::string_view body);
  // The consumer could not take what it was offered.
  absl::Status OnAgain(absl::string_view body);
  // The consumer has got a transfer descriptor, and takes no value from it.
  absl::Status OnDeclined(absl::string_view body);
  void OnDone(uint64_t id, bool was_taken = true);
  void OnCancel(uint64_t id);
  void OnValue(const RequestPtr& request, const absl::Status& status, Received received);
  void Offer(Outgoing outgoing);
  // Copies it to the host's memory, and offers that.
  void Stage(Outgoing outgoing);
  // It is not on its way out of a GPU's memory any more.
  void Unstage(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(uint64_t id, absl::Status status);
  // Its value is here, and cannot be sent: both sides hear why.
  void Lose(const Request& request, const absl::Status& why);
  // As Lose, when the control channel has ended and there is only this side.
  void RecordSendFailure(const Request& request, const absl::Status& why);
  absl::Status closed() const ABSL_LOCKS_EXCLUDED(mu_);
  // What went wrong here, for people there.
  absl::Status Named(const absl::Status& why) const;
  void Send(Request& request, ReadyToSendMessage ticket, absl::Span<const int> descriptors)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Of flushes that are over.
  std::vector<StepOperation> TakeFlushed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: nobody waits for it any more.
  bool Take(const Request& request) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether it is small enough.
  bool GoesInTicket(const Tensor& tensor, bool is_in_arena) const;
  void SendInTicket(const Outgoing& outgoing, ReadyToSendMessage ticket);
  // For the log: which way such a tensor takes, and why, if that is new or has changed.
  void LogPath(const PathQuery& query, absl::string_view path) ABSL_LOCKS_EXCLUDED(mu_);
  // Of a tensor from here to the consumer; all but where it lies and is wanted.
  PathQuery Query(size_t bytes, bool is_in_arena, absl::Time now) const;

  // Constant after OnOpen, before which nothing else happens.
  const TransferContext& exchange_;
  const Endpoint consumer_;
  const bool sends_seals_;
  const std::string why_no_descriptors_;
  const std::shared_ptr<LatencyProbe> ping_;
  std::shared_ptr<ControlChannel> channel_;
  std::vector<std::shared_ptr<TransportSender>> senders_;
  // Of the loop.
  KeyCache keys_;

  mutable SpinLock mu_;
  // Why it has ended, or OK.
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, RequestPtr> waiting_ ABSL_GUARDED_BY(mu_);
  AckTracker answers_ ABSL_GUARDED_BY(mu_);
  // Those that somebody waits for, or has waited for long enough, and their numbers.
  std::vector<std::pair<uint64_t, StepOperation>> flushes_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Offered> offered_ ABSL_GUARDED_BY(mu_);
  // For the log, and empty unless it tells of them: the last path of each kind of tensor, by its
  // size, where it lies and is wanted, and whether it is in an arena.
  absl::flat_hash_map<std::tuple<uint32_t, uint32_t, uint32_t, bool>, std::string> logged_paths_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_TENSOR_RESPONDER_H_
