// SPDX-License-Identifier: Apache-2.0
// NodeCommunicators: the NCCL communicators of this node's GPUs with others of the job.
#ifndef FERRY_NODE_NODE_COMMUNICATORS_H_
#define FERRY_NODE_NODE_COMMUNICATORS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coord/client/agent.h"
#include "gpu/communicator/communicator.h"
#include "gpu/communicator/communicator_use_record.h"
#include "gpu/discovery.h"
#include "node/communicator_cache.h"
#include "node/peer_directory.h"
#include "node/transfer_engine.h"
#include "topology/global_topology.h"

namespace ferry {

struct NodeCommunicatorsOptions {
  // Per-GPU memory budget, in bytes, for cached, idle communicators. 0 disables caching.
  uint64_t budget_bytes = 0;
  // Maximum time that Stop waits for NCCL to end them.
  absl::Duration abort_timeout;
};

// Translates a list of the job's devices into the ranks of a communicator, each identified by its
// device and its node's incarnation, finds the rank of this node, and has the communicator made, or
// reused, by a CommunicatorCache whose reference counts are in the job's store. Thread-safe. The
// constructor's references are not used after Stop has succeeded.
class NodeCommunicators final {
 public:
  //   exchange: provides the GPUs and the NCCL library.
  NodeCommunicators(coord::Agent& agent, PeerDirectory& peers, TransferEngine& engine,
                    const GlobalTopology& topology, const LocalDiscovery& discovery,
                    const NodeCommunicatorsOptions& options);

  NodeCommunicators(const NodeCommunicators&) = delete;
  NodeCommunicators& operator=(const NodeCommunicators&) = delete;

  // See Node::Communicator.
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Acquire(const std::vector<int>& devices,
                                                            std::optional<int> own,
                                                            CommunicatorOptions options);

  // The lost incarnations of the node take part in no communicator any more: those that are being
  // made fail, and cached ones are ended soon. Does not block.
  void Forget(const LostPeer& lost);

  // Ends idle communicators; those in use end when they are released. Blocks.
  //   Errors: UNAVAILABLE one has not ended in time. NCCL may still return, and use the store and
  //   the GPUs: the agent and the transfer engine must live until the process exits.
  absl::Status Stop();

 private:
  coord::Agent& agent_;
  PeerDirectory& peers_;
  TransferEngine& engine_;
  const GlobalTopology& topology_;
  const LocalDiscovery& discovery_;
  const absl::Duration abort_timeout_;
  // Leaked by a Stop that fails.
  std::unique_ptr<UseRecordStore> use_record_store_;
  // Shared with the users of its communicators.
  const std::shared_ptr<CommunicatorCache> cache_;
};

}  // namespace ferry

#endif  // FERRY_NODE_NODE_COMMUNICATORS_H_
