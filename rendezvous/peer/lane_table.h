// SPDX-License-Identifier: Apache-2.0
// LaneTable: the lanes of a process; one with each peer, whoever has opened it.
#ifndef FERRY_RENDEZVOUS_PEER_LANE_TABLE_H_
#define FERRY_RENDEZVOUS_PEER_LANE_TABLE_H_

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
#include "rendezvous/peer/lane_link.h"
#include "transport/control/lane_connector.h"

namespace ferry {

// Two processes may open a lane to each other at the same moment. Of the two, the one with the
// smaller node id decides, by its HELLO: it says that on one lane with a peer only, which is the
// first that is there, opened by itself or by the peer; others are refused with ALREADY_EXISTS. The
// other process takes the lane on which it hears it, and gives up what it has opened itself. So
// both take the same one, nothing is asked before, and a connection that never comes about stands
// in nobody's way. Who is refused and has no lane tries again soon: the peer has another one under
// way, or has not noticed yet that an old one has ended.
//
// A life of a peer never gets another life's lane. Thread-safe; held by a shared_ptr, since lanes
// may outlive it.
class LaneTable final : public LaneChooser, public std::enable_shared_from_this<LaneTable> {
 public:
  // `exchange` outlives all lanes.
  explicit LaneTable(const LaneExchange& exchange);
  ~LaneTable() override;
  // Outlives all lanes. Before anything else.
  void set_connector(LaneConnector* connector) { connector_ = connector; }

  // Whether a lane passes descriptors, or why not.
  struct Way {
    bool passes_descriptors() const { return why_no_descriptors.empty(); }

    std::string why_no_descriptors;
  };
  // Of the lane with that life of the peer that is open or being opened; else of the last there
  // was; else of one that would be opened now.
  Way WayTo(const Endpoint& peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Who asks `peer` for values, by a lane that is open or being opened; null: there is none.
  //   Errors: as Close.
  absl::StatusOr<std::shared_ptr<LaneClient>> Find(const LanePeer& peer) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same, or begins to open one: through the peer's Unix socket if it is on this machine, else
  // over TCP.
  absl::StatusOr<std::shared_ptr<LaneClient>> Open(const Endpoint& peer) ABSL_LOCKS_EXCLUDED(mu_);
  // The end of a lane that the peer has opened; null when closed.
  std::shared_ptr<LaneHandler> Accept(const LanePeer& peer) ABSL_LOCKS_EXCLUDED(mu_);

  // The node has died: its lanes end with `why`. But for those of the life that is still there, if
  // any (0: none).
  void Forget(int32_t node_id, const absl::Status& why, uint64_t alive_incarnation = 0)
      ABSL_LOCKS_EXCLUDED(mu_);
  // All lanes end with `why`, and there are no more.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // LaneServer::unfinished of all peers.
  size_t unfinished_sends() const ABSL_LOCKS_EXCLUDED(mu_);
  // LaneServer::ForEachTransfer of all peers.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const ABSL_LOCKS_EXCLUDED(mu_);
  // The producer's end of every open lane.
  std::vector<std::shared_ptr<LaneServer>> Servers() const ABSL_LOCKS_EXCLUDED(mu_);
  // Lanes that are open or being opened, or have ended and are still held by somebody.
  size_t lane_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // The size of every internal table, summed over the lanes; for tests and debugging. On the loop.
  TableSizes InnerTableSizes() const ABSL_LOCKS_EXCLUDED(mu_);

  // Called by links.
  absl::Status OnLinkOpen(const std::shared_ptr<LaneLink>& link) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::shared_ptr<LaneClient>> OnLinkHello(const std::shared_ptr<LaneLink>& link,
                                                          const Endpoint& peer) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnLinkServes(LaneLink& link, const std::shared_ptr<LaneServer>& server) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnLinkClosed(LaneLink& link, const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // This process and a life of another one, from the first need, or the first HELLO, to the end of
  // the lane that was taken. All but the client belongs to the table's lock.
  struct Pair {
    explicit Pair(std::shared_ptr<LaneClient> client) : client(std::move(client)) {}

    const LanePeer& peer() const { return client->producer().peer; }

    const std::shared_ptr<LaneClient> client;
    std::shared_ptr<LaneLink> taken;
    // Opened by this side, and not taken yet.
    std::shared_ptr<LaneLink> opening;
    LaneConnector::AttemptId attempt = 0;
    bool is_trying_unix = false;
    bool is_over = false;
    // Before the next attempt, and before all so far.
    absl::Duration pause;
    absl::Duration paused;
  };
  using PairPtr = std::shared_ptr<Pair>;
  struct Known {
    std::weak_ptr<LaneLink> link;
    // Null: the peer has opened it, and it was not taken.
    PairPtr pair;
    std::weak_ptr<LaneServer> server;
  };

  // There is a lane, and its peer is to say HELLO.
  struct Silent {
    absl::Time until;
    std::weak_ptr<LaneLink> link;
  };

  // What became of the last lane with a node, in one of its lives.
  struct Past {
    uint64_t incarnation = 0;
    Way way;
  };

  // Empty: it can be reached by its Unix socket.
  std::string WhyNoUnixSocket(const Endpoint& peer) const;
  // Whether this side decides which lane there is with `peer`.
  bool Decides(const LanePeer& peer) const;
  PairPtr MakePair(const Endpoint& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Attempt(const PairPtr& pair) ABSL_LOCKS_EXCLUDED(mu_);
  void OnAttemptFailed(const PairPtr& pair, const LaneLink& link, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes a lane that the peer has opened. `replaced`: the peer has given that one up.
  absl::StatusOr<PairPtr> TakePeersLink(const std::shared_ptr<LaneLink>& link, const Endpoint& peer,
                                        std::shared_ptr<LaneLink>& replaced)
      ABSL_LOCKS_EXCLUDED(mu_);
  // One timer for all that are silent: who is tried again and again leaves none behind. On the
  // loop.
  void AwaitHello();
  void EndWhoIsSilent();
  void RemoveSilent(const LaneLink& link);
  bool IsPeerOpening(const LanePeer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Any thread; its end comes on the loop.
  void Drop(const PairPtr& pair, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Of one that has no lane. On the loop.
  void EndWithoutLane(const PairPtr& pair, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // What this side has under way ends.
  void GiveUp(const std::shared_ptr<LaneLink>& opening, LaneConnector::AttemptId attempt,
              const absl::Status& why);
  void Erase(const PairPtr& pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const LaneExchange& exchange_;
  LaneConnector* connector_ = nullptr;

  // Of the loop. Whoever has been silent for longest is the first.
  std::deque<Silent> silent_;
  bool awaits_hello_ = false;

  mutable SpinLock mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<LanePeer, PairPtr> pairs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const LaneLink*, Known> links_ ABSL_GUARDED_BY(mu_);
  // By node id.
  absl::flat_hash_map<int32_t, Past> past_ ABSL_GUARDED_BY(mu_);
  // Of lanes that have ended.
  std::vector<std::weak_ptr<LaneServer>> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_LANE_TABLE_H_
