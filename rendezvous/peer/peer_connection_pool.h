// SPDX-License-Identifier: Apache-2.0
// PeerConnectionPool: the control channels of a process; one with each peer, whoever has opened it.
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

// Two processes may open a control channel to each other at the same moment. Of the two, the one
// with the smaller node id decides, by its HELLO: it says that on one control channel with a peer
// only, which is the first that is there, opened by itself or by the peer; others are refused with
// ALREADY_EXISTS. The other process takes the control channel on which it hears it, and gives up
// what it has opened itself. So both take the same one, nothing is asked before, and a connection
// that never comes about stands in nobody's way. Who is refused and has no control channel tries
// again soon: the peer has another one under way, or has not noticed yet that an old one has ended.
//
// A life of a peer never gets another life's control channel. Thread-safe; held by a shared_ptr,
// since control channels may outlive it.
class PeerConnectionPool final : public PeerConnectionObserver,
                                 public std::enable_shared_from_this<PeerConnectionPool> {
 public:
  // `exchange` outlives all control channels.
  explicit PeerConnectionPool(const TransferContext& exchange);
  ~PeerConnectionPool() override;
  // Outlives all control channels. Before anything else.
  void set_connector(Connector* connector) { connector_ = connector; }

  // Whether a control channel passes descriptors, or why not.
  struct Way {
    bool passes_descriptors() const { return why_no_descriptors.empty(); }

    std::string why_no_descriptors;
  };
  // Of the control channel with that life of the peer that is open or being opened; else of the
  // last there was; else of one that would be opened now.
  Way WayTo(const Endpoint& peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Who asks `peer` for values, by a control channel that is open or being opened; null: there is
  // none.
  //   Errors: as Close.
  absl::StatusOr<std::shared_ptr<TensorRequester>> Find(const PeerId& peer) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same, or begins to open one: through the peer's Unix socket if it is on this machine, else
  // over TCP.
  absl::StatusOr<std::shared_ptr<TensorRequester>> Open(const Endpoint& peer)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The end of a control channel that the peer has opened; null when closed.
  std::shared_ptr<ControlHandler> Accept(const PeerId& peer) ABSL_LOCKS_EXCLUDED(mu_);

  // The node has died: its control channels end with `why`. But for those of the life that is still
  // there, if any (0: none).
  void Forget(int32_t node_id, const absl::Status& why, uint64_t alive_incarnation = 0)
      ABSL_LOCKS_EXCLUDED(mu_);
  // All control channels end with `why`, and there are no more.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // TensorResponder::unfinished of all peers.
  size_t unfinished_sends() const ABSL_LOCKS_EXCLUDED(mu_);
  // TensorResponder::ForEachTransfer of all peers.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const ABSL_LOCKS_EXCLUDED(mu_);
  // The producer's end of every open control channel.
  std::vector<std::shared_ptr<TensorResponder>> Servers() const ABSL_LOCKS_EXCLUDED(mu_);
  // Control channels that are open or being opened, or have ended and are still held by somebody.
  size_t lane_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table, summed over the control channels; for tests and debugging. On
  // the loop.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

  // Called by links.
  absl::Status OnLinkOpen(const std::shared_ptr<PeerConnection>& link) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<TensorRequester>> OnLinkHello(
      const std::shared_ptr<PeerConnection>& link, const Endpoint& peer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnLinkServes(PeerConnection& link, const std::shared_ptr<TensorResponder>& server) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnLinkClosed(PeerConnection& link, const absl::Status& why) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // This process and a life of another one, from the first need, or the first HELLO, to the end of
  // the control channel that was taken. All but the client belongs to the table's lock.
  struct Pair {
    explicit Pair(std::shared_ptr<TensorRequester> client) : client(std::move(client)) {}

    const PeerId& peer() const { return client->producer().peer; }

    const std::shared_ptr<TensorRequester> client;
    std::shared_ptr<PeerConnection> taken;
    // Opened by this side, and not taken yet.
    std::shared_ptr<PeerConnection> opening;
    Connector::AttemptId attempt = 0;
    bool is_trying_unix = false;
    bool is_over = false;
    // Before the next attempt, and before all so far.
    absl::Duration pause;
    absl::Duration paused;
  };
  using PairPtr = std::shared_ptr<Pair>;
  struct Known {
    std::weak_ptr<PeerConnection> link;
    // Null: the peer has opened it, and it was not taken.
    PairPtr pair;
    std::weak_ptr<TensorResponder> server;
  };

  // There is a control channel, and its peer is to say HELLO.
  struct Silent {
    absl::Time until;
    std::weak_ptr<PeerConnection> link;
  };

  // What became of the last control channel with a node, in one of its lives.
  struct Past {
    uint64_t incarnation = 0;
    Way way;
  };

  // Empty: it can be reached by its Unix socket.
  std::string WhyNoUnixSocket(const Endpoint& peer) const;
  // Whether this side decides which control channel there is with `peer`.
  bool Decides(const PeerId& peer) const;
  PairPtr MakePair(const Endpoint& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Attempt(const PairPtr& pair) ABSL_LOCKS_EXCLUDED(mu_);
  void OnAttemptFailed(const PairPtr& pair, const PeerConnection& link, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes a control channel that the peer has opened. `replaced`: the peer has given that one up.
  absl::StatusOr<PairPtr> TakePeersLink(const std::shared_ptr<PeerConnection>& link,
                                        const Endpoint& peer,
                                        std::shared_ptr<PeerConnection>& replaced)
      ABSL_LOCKS_EXCLUDED(mu_);
  // One timer for all that are silent: who is tried again and again leaves none behind. On the
  // loop.
  void AwaitHello();
  void EndWhoIsSilent();
  void RemoveSilent(const PeerConnection& link);
  bool IsPeerOpening(const PeerId& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Any thread; its end comes on the loop.
  void Drop(const PairPtr& pair, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Of one that has no control channel. On the loop.
  void EndWithoutLane(const PairPtr& pair, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // What this side has under way ends.
  void GiveUp(const std::shared_ptr<PeerConnection>& opening, Connector::AttemptId attempt,
              const absl::Status& why);
  void Erase(const PairPtr& pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TransferContext& exchange_;
  Connector* connector_ = nullptr;

  // Of the loop. Whoever has been silent for longest is the first.
  std::deque<Silent> silent_;
  bool awaits_hello_ = false;

  mutable SpinLock mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<PeerId, PairPtr> pairs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const PeerConnection*, Known> links_ ABSL_GUARDED_BY(mu_);
  // By node id.
  absl::flat_hash_map<int32_t, Past> past_ ABSL_GUARDED_BY(mu_);
  // Of control channels that have ended.
  std::vector<std::weak_ptr<TensorResponder>> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_PEER_CONNECTION_POOL_H_
