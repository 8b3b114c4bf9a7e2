// SPDX-License-Identifier: Apache-2.0
// EagerPeers: the eager links of a process, by peer.
#ifndef FERRY_RENDEZVOUS_PEER_EAGER_PEERS_H_
#define FERRY_RENDEZVOUS_PEER_EAGER_PEERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/eager_link.h"
#include "rendezvous/peer/eager_inbox.h"
#include "rendezvous/peer/eager_outbox.h"
#include "transport/inline_threshold.h"

namespace ferry {

// Links are made on first use, one for each incarnation of a node, and live as long as this does,
// so that a pointer to one stays valid. Thread-safe. SendLinkFor takes no lock, nor does
// RecvLinkFor for the incarnation that was looked up last. The setters are not thread-safe: call
// them before the first connection.
class EagerPeers final : public EagerLinks {
 public:
  // `context` must outlive it. `limits`: for each peer, the unexpected values that this process
  // buffers.
  EagerPeers(const TransferContext& context, const EagerLimits& limits)
      : context_(context), limits_(limits) {}
  ~EagerPeers() override;

  // Until then delayed acknowledgements and watches are not sent. REQUIRES: not null.
  void set_run_after(EagerInbox::RunAfter run_after) { run_after_ = std::move(run_after); }
  // Values are requested while more bytes than that are queued on the control channel, which is
  // closed when its queue is full.
  void set_max_backlog(size_t bytes) { max_backlog_ = bytes; }
  size_t max_backlog() const { return max_backlog_; }

  const EagerLimits& limits() const { return limits_; }
  EagerSendLink* SendLinkFor(const RendezvousKey& key) override;
  EagerRecvLink* RecvLinkFor(const RendezvousKey& key) override;

  // Null for a node that has had more than kMaxLinks incarnations, or whose number is 2^20 or more:
  // everything between the two is requested.
  EagerInbox* InboxOf(const PeerId& producer);
  EagerOutbox* OutboxOf(const PeerId& consumer);
  // Values for that node go over this control channel from now on. Without effect for a node that
  // OutboxOf does not know.
  //   outbox: null: nothing is sent over it before it is requested.
  void SetConnected(const PeerId& consumer, const ControlChannel& channel, EagerOutbox* outbox);
  // The control channel has ended. If it was the last one to be connected, values go to another
  // incarnation of the node that has one; null: there is none. The caller offers it what is queued.
  EagerOutbox* OnDisconnected(const PeerId& consumer, const ControlChannel& channel);

  // Acknowledges what was received, before control channels are closed.
  void BeforeClose();
  // As EagerOutbox::ForEachTransfer, for all peers.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const;
  // The sum over all peers.
  TableSizes InnerTableSizes() const;

 private:
  // One incarnation of a node.
  struct Link {
    Link(const TransferContext& context, const EagerLimits& limits, const PeerId& peer,
         const EagerInbox::RunAfter& run_after)
        : peer(peer), outbox(context, peer), inbox(context, limits, peer, run_after) {}

    const PeerId peer;
    EagerOutbox outbox;
    EagerInbox inbox;
  };
  struct Node {
    // That of the control channel below; null: there is none, or everything is requested over it.
    std::atomic<EagerOutbox*> connected{nullptr};
    // The last one that was looked up.
    std::atomic<EagerInbox*> inbox{nullptr};
    SpinLock mu;
    // The control channel that was connected last; null: it has ended. Only its address is used.
    const ControlChannel* channel ABSL_GUARDED_BY(mu) = nullptr;
    std::vector<std::unique_ptr<Link>> links ABSL_GUARDED_BY(mu);
  };
  static constexpr size_t kChunk = 1024;
  using Chunk = std::array<std::atomic<Node*>, kChunk>;
  // Incarnations of a node, which it has by being restarted.
  static constexpr size_t kMaxLinks = 1024;

  // Null: there is none yet.
  Node* FindNode(int64_t node_id) const;
  // Null: its number is too large.
  Node* GetNode(int64_t node_id) ABSL_LOCKS_EXCLUDED(mu_);
  Link* GetLink(const PeerId& peer) ABSL_LOCKS_EXCLUDED(mu_);
  // Visits all links, which may be used concurrently.
  void ForEachLink(absl::FunctionRef<void(Link&)> visit) const;

  const TransferContext& context_;
  const EagerLimits limits_;
  size_t max_backlog_ = kEagerBacklog;
  EagerInbox::RunAfter run_after_ = [](absl::Duration, const absl::AnyInvocable<void()>&) {};
  std::array<std::atomic<Chunk*>, kChunk> chunks_ = {};
  // For additions.
  SpinLock mu_;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_EAGER_PEERS_H_
