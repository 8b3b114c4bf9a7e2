// SPDX-License-Identifier: Apache-2.0
// PeerDirectory: publishes this node's endpoint, and looks up those of the job's other nodes.
#ifndef FERRY_NODE_PEER_DIRECTORY_H_
#define FERRY_NODE_PEER_DIRECTORY_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "coord/client/agent.h"
#include "rendezvous/peer/peer_fetcher.h"
#include "transport/transport.h"

namespace ferry {

// Time within which a node that has joined publishes the addresses of its tensor endpoint.
inline constexpr absl::Duration kAddressTimeout = absl::Seconds(30);

// Options of Node::Key and PeerDirectory::Lookup.
struct AddressWait {
  absl::Duration timeout = kAddressTimeout;
  // Outlives the call; null: the wait cannot be cancelled.
  CancellationToken* cancellation = nullptr;
};

// A node that has died or was restarted.
struct LostPeer {
  int node_id = 0;
  // UNAVAILABLE it has died; ABORTED it was restarted.
  absl::Status why;
  // The restarted node's. 0: no live successor.
  uint64_t alive_incarnation = 0;
  std::vector<uint64_t> gone_incarnations;
};

// Every node publishes its endpoint (its incarnation and the addresses at which it serves tensors)
// in the job's store, where its peers look it up once. A cached endpoint is valid for one
// incarnation of its node: it is dropped when the job's node table shows that the node has died or
// was restarted. Thread-safe.
class PeerDirectory final {
 public:
  // `agent` is the connection of node `node_id` to the job, and outlives this.
  PeerDirectory(coord::Agent& agent, int node_id)
      : agent_(agent), node_id_(node_id), known_(static_cast<size_t>(agent.num_nodes())) {}

  PeerDirectory(const PeerDirectory&) = delete;
  PeerDirectory& operator=(const PeerDirectory&) = delete;

  // Makes this node's endpoint known to the job. Blocks.
  //   Errors: as coord::Agent::Set.
  absl::Status Publish(Endpoint self) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the endpoint of a node. Blocks while a node that has joined has not yet published it.
  //   Errors: INVALID_ARGUMENT for an unknown node; DEADLINE_EXCEEDED naming the node and its known
  //   state; UNAVAILABLE it has died; FAILED_PRECONDITION for this node before Publish; CANCELLED.
  absl::StatusOr<Endpoint> Lookup(int node, const AddressWait& wait = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the endpoint of a peer that has been looked up before. Does not block.
  //   Errors: FAILED_PRECONDITION.
  absl::StatusOr<Endpoint> Known(int node) const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the incarnation of the endpoint that Lookup returns for `node` without a wait; 0: it
  // has to look it up, or fails. Takes no lock.
  uint64_t KnownIncarnation(int node) const {
    if (node < 0 || static_cast<size_t>(node) >= known_.size()) return 0;
    return known_[static_cast<size_t>(node)].load(std::memory_order_acquire);
  }

  // Returns a function that reads the current record of a node and bypasses the cache, for control
  // channels, which compare incarnations themselves. It does not use this object, only the agent.
  EndpointResolver Resolver() const;

  // Compares the job's node table with what is known, and returns the nodes that died or were
  // restarted since the last call.
  std::vector<LostPeer> Update(const coord::NodeTable& table) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void SetKnown(int node, uint64_t incarnation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    known_[static_cast<size_t>(node)].store(incarnation, std::memory_order_release);
  }
  // Drops the endpoint, if it is cached.
  void Forget(int node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::string> WaitForRecord(int node, const AddressWait& wait)
      ABSL_LOCKS_EXCLUDED(mu_);

  coord::Agent& agent_;
  const int node_id_;

  mutable absl::Mutex mu_;
  // Absent until Publish.
  std::optional<Endpoint> self_ ABSL_GUARDED_BY(mu_);
  // Cached results of lookups.
  absl::flat_hash_map<int, Endpoint> endpoints_ ABSL_GUARDED_BY(mu_);
  // For each node, the incarnation in `endpoints_` or `self_`, or 0. Written with `mu_` held.
  std::vector<std::atomic<uint64_t>> known_;
  // Current incarnations, as last reported by the job.
  absl::flat_hash_map<int, uint64_t> incarnations_ ABSL_GUARDED_BY(mu_);
  // Dead nodes, and the job's status for each.
  absl::flat_hash_map<int, absl::Status> failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_NODE_PEER_DIRECTORY_H_
