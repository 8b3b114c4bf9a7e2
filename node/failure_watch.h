// SPDX-License-Identifier: Apache-2.0
// FailureWatch: fails the operations that need a node which has died or was restarted.
#ifndef FERRY_NODE_FAILURE_WATCH_H_
#define FERRY_NODE_FAILURE_WATCH_H_

#include "coord/client/agent.h"
#include "node/node_communicators.h"
#include "node/node_watch.h"
#include "node/peer_directory.h"
#include "node/transfer_engine.h"

namespace ferry {

// The coordinator detects failures; this class acts on them. It follows the job's node table for as
// long as it lives: for each node that is lost, the peer directory drops its endpoint, the
// communicators of its devices become invalid, and the transfers with it fail, long before their
// own timeouts. Thread-safe. All arguments of the constructor outlive Stop.
class FailureWatch final {
 public:
  FailureWatch(coord::Agent& agent, int node_id, PeerDirectory& peers,
               NodeCommunicators& communicators, TransferEngine& engine);

  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  // No failure is acted on after this has returned. Called by the destructor. Blocks while one is.
  void Stop() { watch_.Stop(); }

 private:
  void OnTable(const coord::NodeTable& table);

  const int node_id_;
  PeerDirectory& peers_;
  NodeCommunicators& communicators_;
  TransferEngine& engine_;
  // Declared last: its callbacks use the other members as soon as it is constructed.
  NodeWatch watch_;
};

}  // namespace ferry

#endif  // FERRY_NODE_FAILURE_WATCH_H_
