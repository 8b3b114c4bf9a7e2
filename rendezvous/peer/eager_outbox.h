// SPDX-License-Identifier: Apache-2.0
// EagerOutbox: the values that this process sends to one peer before they are requested.
#ifndef FERRY_RENDEZVOUS_PEER_EAGER_OUTBOX_H_
#define FERRY_RENDEZVOUS_PEER_EAGER_OUTBOX_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/eager_link.h"
#include "rendezvous/outstanding_operations.h"
#include "rendezvous/peer/eager_sender.h"
#include "rendezvous/peer/transfer_context.h"
#include "rendezvous/remote_rendezvous.h"
#include "transport/control/control_channel.h"

namespace ferry {

// EagerSender with a lock, the control channel and the tables of the open steps. For one
// incarnation of a consumer; it stays when the control channel ends. Thread-safe. Messages are
// passed with the control channel on which they came, and ignored if it is no longer the current
// one. Lock order: a shard's of a local table, this, a step's.
class EagerOutbox final : public EagerSendLink {
 public:
  // Values above those sizes, in bytes, are requested.
  struct SizeLimits {
    size_t in_arena = 0;
    size_t elsewhere = 0;
  };

  // `context` must outlive it.
  EagerOutbox(const TransferContext& context, const PeerId& consumer)
      : context_(context), consumer_(consumer) {}

  // There is a control channel, on which the consumer has announced these limits.
  void OnOpen(std::shared_ptr<ControlChannel> channel, const EagerLimits& limits,
              const SizeLimits& sizes) ABSL_LOCKS_EXCLUDED(mu_);
  // It has ended; values that were not received are recorded as lost. Ignored if another one has
  // been opened since.
  void OnClosed(const ControlChannel& channel, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Null: there is none. Only its address may be used.
  const ControlChannel* channel() const ABSL_LOCKS_EXCLUDED(mu_);
  // Offers all values that are queued for the consumer: they may have been queued for another
  // incarnation of it.
  void OfferAll() ABSL_LOCKS_EXCLUDED(mu_);

  bool TrySend(const Offer& offer) override ABSL_LOCKS_EXCLUDED(mu_);
  // After a PUSH has been handled, so have the requests that came before it.
  uint64_t push_count() const override { return push_count_.load(std::memory_order_acquire); }
  size_t TrySendMany(RemoteRendezvous& step, absl::Span<SendItem* const> items, uint64_t push_count,
                     bool more_follow) override ABSL_LOCKS_EXCLUDED(mu_);
  void AfterSend() override {
    if (has_unsent_.load(std::memory_order_relaxed)) SendUnsent();
    if (needs_drain_.load(std::memory_order_relaxed)) Drain();
  }
  void OnStepServing(int64_t step_id) override ABSL_LOCKS_EXCLUDED(mu_);
  void StartFlush(int64_t step_id) override ABSL_LOCKS_EXCLUDED(mu_);
  void EndFlush(int64_t step_id) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnStepEnd(RemoteRendezvous& step, const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

  //   Errors, for all: INVALID_ARGUMENT: a violation of the protocol.
  absl::Status OnPush(const ControlChannel& channel, absl::string_view body)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnAck(const ControlChannel& channel, absl::string_view body)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnAcknowledged(const ControlChannel& channel, const EagerRange& range)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnStepRefused(const ControlChannel& channel, absl::string_view body)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A REJECTED with kEagerRejectedBit in its id.
  absl::Status OnRejected(const ControlChannel& channel, uint64_t id, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The key of a name that has that number; none: there is no such name.
  std::optional<RendezvousKey> FindName(const ControlChannel& channel, uint32_t name) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Visits values sent at least `min_age` ago that are not known to be received.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table; for tests and debugging.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Loss {
    int64_t step_id;
    RendezvousKey key;
  };
  // To be done once the lock is released, in this order.
  struct Deferred {
    std::vector<Loss> losses;
    std::vector<StepOperation> ended;
  };

  bool IsCurrent(const ControlChannel& channel) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return &channel == channel_.get();
  }
  bool IsEager(const Tensor& tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SendValue(const Offer& offer, const EagerSender::Decision& decision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends a value of a name with a number.
  //   more_follow: it is only added to the frame that waits for further values.
  absl::Status SendNamed(int64_t step_id, const EagerSender::Decision& decision,
                         const RendezvousKey& key, const Tensor& tensor, bool more_follow)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The frame that waits for further values must be sent before any other.
  absl::Status SendFrame() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendUnsent() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the step's operation if nothing of it is unacknowledged any more.
  void EndIfReceived(int64_t step_id, std::vector<StepOperation>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets the control channel, with everything that was sent on it.
  void Reset(Deferred& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run(Deferred deferred, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds the values that are queued for the consumer, or those of that key, to those to be drained.
  void Scan(const std::optional<RendezvousKey>& key) ABSL_LOCKS_EXCLUDED(mu_);
  // Offers queued values that may be sent now.
  void Drain() ABSL_LOCKS_EXCLUDED(mu_);

  const TransferContext& context_;
  const PeerId consumer_;
  // Something may be sent, or be kept for later. False: TrySend returns at once.
  std::atomic<bool> is_started_{false};
  // Counts those of all control channels. Written with the lock held.
  std::atomic<uint64_t> push_count_{0};
  std::atomic<bool> needs_drain_{false};
  // There is a frame that has not been sent.
  std::atomic<bool> has_unsent_{false};

  mutable SpinLock mu_;
  std::shared_ptr<ControlChannel> channel_ ABSL_GUARDED_BY(mu_);
  SizeLimits sizes_ ABSL_GUARDED_BY(mu_);
  // Set as long as there is a control channel.
  std::optional<EagerSender> sender_ ABSL_GUARDED_BY(mu_);
  // Values of a step that wait for further ones; none: there is no such frame.
  EagerFrameWriter frame_ ABSL_GUARDED_BY(mu_);
  // For steps with values that are not acknowledged.
  absl::flat_hash_map<int64_t, StepOperation> operations_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_EAGER_OUTBOX_H_
