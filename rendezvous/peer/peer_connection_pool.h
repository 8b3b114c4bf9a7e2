// SPDX-License-Identifier: Apache-2.0
// PeerConnectionPool: a process's control channels; one with each peer, whichever side opened it.
#ifndef FERRY_RENDEZVOUS_PEER_PEER_CONNECTION_POOL_H_
#define FERRY_RENDEZVOUS_PEER_PEER_CONNECTION_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "base/spin_lock.h"
#include "base/table_sizes.h"
#include "rendezvous/peer/peer_connection.h"
#include "transport/control/connector.h"

namespace ferry {

// Simultaneous open: two processes may open a control channel to each other at the same time. The
// one with the smaller node id decides by its HELLO: it sends HELLO on only one control channel per
// peer, the first that is open, whichever side opened it; others are refused with ALREADY_EXISTS.
// The other process uses the control channel on which it receives HELLO, and abandons any that it
// opened itself. So both use the same one without a prior exchange, and a connection that is never
// established blocks nothing. A refused process without a control channel retries soon: the peer is
// opening another one, or has not noticed yet that an old one has closed.
//
// Control channels are keyed by node and incarnation: a restarted peer never reuses its
// predecessor's. Thread-safe; held by a shared_ptr, since control channels may outlive it.
class PeerConnectionPool final : public PeerConnectionObserver,
                                 public std::enable_shared_from_this<PeerConnectionPool> {
 public:
  // `context` must outlive all control channels.
  explicit PeerConnectionPool(const TransferContext& context);
  ~PeerConnectionPool() override;
  // `connector` must outlive all control channels. Call before anything else.
  void set_connector(Connector* connector) { connector_ = connector; }

  // Whether a control channel passes descriptors, or why not.
  struct ControlPath {
    bool passes_descriptors() const { return descriptors_unavailable_reason.empty(); }

    std::string descriptors_unavailable_reason;
  };
  // For the control channel with that incarnation of the peer that is open or being opened; else
  // for the last one; else for one that would be opened now.
  ControlPath ControlPathTo(const Endpoint& peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the requester for `peer`, whose control channel is open or being opened; null: there is
  // none.
  //   Errors: as Close.
  absl::StatusOr<std::shared_ptr<TensorRequester>> Find(const PeerId& peer) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same, but opens a control channel if there is none: through the peer's Unix socket if it is
  // on this machine, else over TCP.
  absl::StatusOr<std::shared_ptr<TensorRequester>> Open(const Endpoint& peer)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Creates this side's end of a control channel that the peer has opened; null when closed.
  std::shared_ptr<ControlHandler> Accept(const PeerId& peer) ABSL_LOCKS_EXCLUDED(mu_);

  // The node has failed: closes its control channels with `why`, except those of the incarnation
  // that is still alive, if any (0: none).
  void Forget(int32_t node_id, const absl::Status& why, uint64_t alive_incarnation = 0)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Closes all control channels with `why`; no more are opened.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Sum of TensorResponder::unfinished over all peers.
  size_t unfinished_sends() const ABSL_LOCKS_EXCLUDED(mu_);
  // TensorResponder::ForEachTransfer for all peers.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const ABSL_LOCKS_EXCLUDED(mu_);
  // The responder of every open control channel.
  std::vector<std::shared_ptr<TensorResponder>> Responders() const ABSL_LOCKS_EXCLUDED(mu_);
  // Control channels that are open, being opened, or closed but still referenced.
  size_t connection_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table, summed over the control channels; for tests and debugging. On
  // the loop.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

  // Called by PeerConnections.
  absl::Status OnConnectionOpen(const std::shared_ptr<PeerConnection>& connection) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<TensorRequester>> OnPeerHello(
      const std::shared_ptr<PeerConnection>& connection, const Endpoint& peer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnResponderReady(PeerConnection& connection,
                        const std::shared_ptr<TensorResponder>& responder) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnConnectionClosed(PeerConnection& connection, const absl::Status& why) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // State for this process and one incarnation of a peer, from the first request or HELLO until the
  // chosen control channel closes. All but `requester` is guarded by the pool's lock.
  struct PeerState {
    explicit PeerState(std::shared_ptr<TensorRequester> requester)
        : requester(std::move(requester)) {}

    const PeerId& peer() const { return requester->producer().peer; }

    const std::shared_ptr<TensorRequester> requester;
    std::shared_ptr<PeerConnection> chosen;
    // Opened by this side, and not chosen yet.
    std::shared_ptr<PeerConnection> opening;
    Connector::AttemptId attempt = 0;
    bool is_trying_unix = false;
    bool is_over = false;
    // Delay before the next attempt, and the sum of all delays so far.
    absl::Duration next_backoff;
    absl::Duration total_backoff;
  };
  using PeerStatePtr = std::shared_ptr<PeerState>;
  struct Entry {
    std::weak_ptr<PeerConnection> connection;
    // Null: opened by the peer, and not chosen.
    PeerStatePtr pair;
    std::weak_ptr<TensorResponder> responder;
  };

  // An open control channel on which the peer's HELLO is awaited.
  struct PendingHello {
    absl::Time until;
    std::weak_ptr<PeerConnection> connection;
  };

  // Result of the last control channel with a node, in one of its incarnations.
  struct LastConnection {
    uint64_t incarnation = 0;
    ControlPath path;
  };

  // Why its Unix socket cannot be used; empty: it can.
  std::string UnixSocketUnavailableReason(const Endpoint& peer) const;
  // True if this side decides which control channel is used with `peer`.
  bool WinsSimultaneousOpen(const PeerId& peer) const;
  PeerStatePtr MakePeerState(const Endpoint& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Attempt(const PeerStatePtr& pair) ABSL_LOCKS_EXCLUDED(mu_);
  void OnAttemptFailed(const PeerStatePtr& pair, const PeerConnection& connection,
                       const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Chooses a control channel that the peer has opened. `replaced`: the one that the peer has
  // abandoned.
  absl::StatusOr<PeerStatePtr> ChoosePeersConnection(
      const std::shared_ptr<PeerConnection>& connection, const Endpoint& peer,
      std::shared_ptr<PeerConnection>& replaced) ABSL_LOCKS_EXCLUDED(mu_);
  // One timer serves all waits for HELLO, so that repeated attempts leave none behind. On the loop.
  void ScheduleHelloTimeout();
  void CloseOnHelloTimeout();
  void RemovePendingHello(const PeerConnection& connection);
  bool IsPeerOpening(const PeerId& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Any thread; its closing is handled on the loop.
  void ClosePeer(const PeerStatePtr& pair, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // For a pair without a control channel. On the loop.
  void FailPeer(const PeerStatePtr& pair, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Abandons this side's pending attempt.
  void AbandonAttempt(const std::shared_ptr<PeerConnection>& opening, Connector::AttemptId attempt,
                      const absl::Status& why);
  void Erase(const PeerStatePtr& pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TransferContext& context_;
  Connector* connector_ = nullptr;

  // Loop thread only. Longest wait first.
  std::deque<PendingHello> pending_hellos_;
  bool is_hello_timeout_scheduled_ = false;

  mutable SpinLock mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<PeerId, PeerStatePtr> pairs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const PeerConnection*, Entry> connections_ ABSL_GUARDED_BY(mu_);
  // By node id.
  absl::flat_hash_map<int32_t, LastConnection> last_connections_ ABSL_GUARDED_BY(mu_);
  // Responders of closed control channels.
  std::vector<std::weak_ptr<TensorResponder>> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_PEER_CONNECTION_POOL_H_
