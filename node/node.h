// SPDX-License-Identifier: Apache-2.0
// Node: a process that has joined a job; the public facade.
#ifndef FERRY_NODE_NODE_H_
#define FERRY_NODE_NODE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "coord/client/agent.h"
#include "gpu/communicator/communicator.h"
#include "gpu/discovery.h"
#include "node/identity.h"
#include "node/key_table.h"
#include "node/node_service.h"
#include "node/peer_directory.h"
#include "node/step.h"
#include "node/transfer_engine.h"
#include "topology/global_topology.h"

namespace ferry {

class FailureWatch;
class NodeCommunicators;

// The coordinator's port if none is given.
inline constexpr int kDefaultCoordinatorPort = 9470;

struct NodeOptions {
  // Rank and size of this process. Absent: taken from the environment (ReadIdentity).
  std::optional<int> node_id;
  std::optional<int> num_nodes;
  // HOST:PORT. Empty: taken from the environment, see ResolveNodeIdentity.
  std::string coordinator;
  // Maximum time Join waits for the coordinator and for the other nodes to join.
  absl::Duration connect_timeout = absl::Minutes(5);
  // Maximum time Join waits for the other nodes' devices, once all of them have joined.
  absl::Duration enumerate_timeout = absl::Minutes(5);
  // See coord::AgentOptions, here and below.
  absl::Duration answer_timeout = absl::Seconds(30);
  absl::Duration reconnect_timeout = absl::ZeroDuration();
  bool recoverable = false;
  std::function<void(absl::Status)> on_error;
  // Keep a copy to cancel a Join that is waiting.
  std::shared_ptr<CancellationToken> connect_stop = std::make_shared<CancellationToken>();
  // Whether other nodes may use this node's GPUs. A job rejects two nodes with the same GPU, which
  // is usually a mistake; where it is intended, all nodes that share a GPU set this, and the UUIDs
  // of their GPUs are not published to the job.
  bool share_gpus = false;
  // Per-GPU memory budget, in bytes, for cached, idle communicators of Communicator(). Idle
  // communicators are evicted, least recently used first, when it is exceeded. 0 disables caching.
  uint64_t kept_communicator_bytes = uint64_t{1} << 30;
  // Whether the node sends and receives tensors; without it no transfer threads are started.
  bool transfers_tensors = true;
  TransferEngineOptions transfer;
  // Makes a service that this node serves, such as TensorFlow's (tensorflow/node_worker); null:
  // none.
  NodeServiceFactory service;
};

// Identity of this process within the job, and the coordinator's address. A plain value.
struct NodeIdentity {
  int node_id = 0;
  // Absent if only the coordinator knows it.
  std::optional<int> num_nodes;
  std::string coordinator;
  // True if no coordinator was given: its address is derived from the job's first machine, and node
  // 0 is expected to run it there (see `ferry worker`).
  bool is_derived = false;
  // Human-readable: "node 3 of 8 (SLURM_PROCID, SLURM_NTASKS)".
  std::string description;
};

// Options take precedence over the environment. If neither names a coordinator, its address is the
// job's first machine with identity.port_hint, or with kDefaultCoordinatorPort if there is no hint.
//   Errors: INVALID_ARGUMENT saying what is missing, out of range or contradictory.
absl::StatusOr<NodeIdentity> ResolveNodeIdentity(const NodeOptions& options, GetEnv get_env);

// The known parts of the job of a process whose identity ResolveNodeIdentity rejects.
struct RefusedNode {
  // As in NodeIdentity.
  std::string coordinator;
  bool is_derived = false;
  std::optional<int> node_id;
  std::optional<int> num_nodes;
  // True if this process may have been meant to be node 0, even if node_id differs: a variable says
  // so, or none has a valid number.
  bool may_be_first = false;
};

// Returns nullopt if neither options nor environment show that this process, which
// ResolveNodeIdentity rejects, was to be a member of a job (it may be a command typed by hand), or
// if they do not give its coordinator's address.
std::optional<RefusedNode> FindRefusedNode(const NodeOptions& options, GetEnv get_env);

// Returns the error with which the other processes of a job fail if this one fails with `why`
// before it joins.
absl::Status CannotJoinError(const absl::Status& why);

// Time for which a process that cannot join waits for others, which may start later, to fail them.
inline constexpr absl::Duration kReportTimeout = absl::Seconds(20);

// For a process that was to be a member of a job and cannot join it: fails, with `why`, the
// processes that wait for the job at `coordinator` to be complete, or else those that arrive within
// `timeout`. A job that is already complete is not affected. Blocks until one has failed or none
// will.
void ReportCannotJoin(const std::string& coordinator, const absl::Status& why,
                      absl::Duration timeout = kReportTimeout,
                      std::shared_ptr<CancellationToken> stop = nullptr);

// As ResolveNodeIdentity, for a process that is about to join. If its identity is rejected and
// FindRefusedNode finds its job, the job's other processes fail with the reason: see
// ReportCannotJoin.
absl::StatusOr<NodeIdentity> ResolveIdentityOrReport(const NodeOptions& options, GetEnv get_env,
                                                     absl::Duration timeout = kReportTimeout);

// A node of a job: identity, devices, connection and topology in one object.
//   FERRY_ASSIGN_OR_RETURN(std::unique_ptr<Node> node, Node::Join({}));
//   node->agent().Barrier("loaded", absl::Minutes(1));
//   node->Shutdown();
// Thread-safe. Owns its agent and the agent's threads. If destroyed without Shutdown or Leave, the
// node is reported dead after the heartbeat timeout, and its job fails.
class Node final {
 public:
  // Resolves this process's identity, discovers its devices, joins, and waits until every node has
  // joined and all hold the same topology. Blocks. Does not start a coordinator.
  //   Errors: INVALID_ARGUMENT as ResolveNodeIdentity; the rest as coord::Agent::Connect and
  //   Enumerate. A node that fails after it has joined reports this to the others, as FailJob. A
  //   process without a valid identity, or whose identity is rejected by the job, reports as
  //   ReportCannotJoin, unless options.recoverable.
  static absl::StatusOr<std::unique_ptr<Node>> Join(NodeOptions options);

  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  int node_id() const { return identity_.node_id; }
  int num_nodes() const { return agent_->num_nodes(); }
  const NodeIdentity& identity() const { return identity_; }

  // The devices of all nodes; the same on each of them.
  const GlobalTopology& topology() const { return topology_; }
  // The devices of this node, and why other devices were not found.
  const LocalDiscovery& discovery() const { return discovery_; }

  // Key-value store, barriers and job status.
  coord::Agent& agent() { return *agent_; }

  // --- Tensors ---

  // Allocates a tensor on `device` of this node ("host:0", "gpu:1"); its elements are
  // uninitialized. Such memory is shared with processes of this host without a copy.
  //   Errors: INVALID_ARGUMENT for an unknown device; RESOURCE_EXHAUSTED naming the option;
  //   FAILED_PRECONDITION without options.transfers_tensors, here and below.
  absl::StatusOr<Tensor> Allocate(absl::string_view device, DataType dtype, const Shape& shape);

  // Returns the key of a tensor called `name` sent from a device of node `from` to a device of node
  // `to`, in whose memory it arrives. Sender and receiver each build the key independently. Looks
  // up the sender's incarnation, once, unless the sender is this node. Recent keys are kept, until
  // their sender dies or is restarted, and returned again.
  //   wait: for a sender that has joined but not yet published its addresses.
  //   Errors: INVALID_ARGUMENT for an unknown node, or as RendezvousKey::CheckEdge;
  //   DEADLINE_EXCEEDED naming the sender and its known state; UNAVAILABLE the sender died earlier;
  //   CANCELLED.
  absl::StatusOr<RendezvousKey> Key(absl::string_view name, int from, int to,
                                    absl::string_view from_device = "host:0",
                                    absl::string_view to_device = "host:0",
                                    const AddressWait& wait = {});

  // Opens the step of that id on this node. The job chooses the ids; an id that was closed on this
  // node cannot be opened again.
  //   Errors: ABORTED it was closed; RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<Step> OpenStep(int64_t step_id);

  // Returns the path that a tensor of `bytes` bytes takes from node `from` to this one, and why the
  // other paths were not selected.
  //   from_location: memory that holds it at the sender; to: memory in which it is to arrive here.
  absl::StatusOr<PathExplanation> PathFrom(int from, size_t bytes, bool is_in_arena = true,
                                           const TensorLocation& from_location = {},
                                           const TensorLocation& to = {});

  // Returns the communicator of these GPUs, given by their global ids in rank order. Collective:
  // every node that owns one of them calls this with the same list, at the same time; NCCL's unique
  // ids are exchanged through the store. While a caller of this process holds the communicator,
  // further calls return the same one. Once it is released here, it is cached for the next call if
  // no operation of Run is in flight on it and NCCL reports no error; beyond
  // NodeOptions::kept_communicator_bytes the least recently used are evicted, except those in use
  // by another rank. Otherwise it is aborted, which invalidates it on all ranks, and the next call
  // creates a new one. Operations issued through get() must have completed, or Abort must have been
  // called, before it is released. CommunicatorOptions::origin makes it of another one. Several
  // threads may request different communicators of the same GPUs, in any order; where collectives
  // run on these GPUs, this call takes part in the order in which they execute. Blocks; the node
  // must outlive the result.
  //   own: the device for which this call is made; required when several are this node's. Each of
  //   these then needs its own thread to call this.
  //   Errors: INVALID_ARGUMENT for a device that is no GPU of the job, or none that is this node's;
  //   FAILED_PRECONDITION this process uses no GPUs, or ranks have different versions of NCCL;
  //   UNAVAILABLE NCCL was not found, naming where it was looked for, or a rank has died; ABORTED a
  //   rank was restarted; as NcclCommunicator::Make.
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Communicator(
      const std::vector<int>& devices, std::optional<int> own = std::nullopt,
      CommunicatorOptions options = {});

  //   Errors: FAILED_PRECONDITION with the reason.
  absl::StatusOr<Gpus*> UsableGpus();
  // REQUIRES: options.transfers_tensors.
  TransferEngine& transfer_engine() { return *engine_; }

  // HOST:PORT of the service of NodeOptions::service, or several separated by commas, in the order
  // in which to try them; empty if the node has none.
  std::string service_address() const;

  // Time that Join waited for the coordinator, the other nodes and their devices.
  absl::Duration join_time() const { return join_time_; }

  // Leaves the job together with every other node. Blocks until all nodes have called this or the
  // coordinator's --shutdown-timeout has passed.
  absl::Status Shutdown() { return agent_->Shutdown(); }
  // Leaves at once; the other nodes continue.
  absl::Status Leave() { return agent_->Leave(); }
  // Leaves because of `why`, which must not be OK: operations that wait for this node fail with it
  // at once, instead of after the heartbeat timeout. The job fails with it, unless the node is
  // recoverable. Blocks for seconds at most, and returns whether or not the coordinator could be
  // reached.
  void FailJob(const absl::Status& why);

 private:
  Node() = default;

  absl::Status StartTransferEngine(const NodeOptions& node);
  absl::Status CheckTransfersTensors() const;

  // Constant once joined.
  NodeIdentity identity_;
  LocalDiscovery discovery_;
  GlobalTopology topology_;
  absl::Duration join_time_;

  // Null unless the node transfers tensors, here and below. Outlives the objects that look up
  // peers.
  std::unique_ptr<PeerDirectory> peers_;
  std::unique_ptr<KeyTable> keys_;
  // Stopped before the transfer engine.
  std::unique_ptr<NodeCommunicators> communicators_;
  std::unique_ptr<TransferEngine> engine_;
  // Null unless the node runs graphs. Destroyed after the transfer engine has stopped, and before
  // it.
  std::unique_ptr<NodeService> service_;
  // Declared last, so that they are destroyed first: their callbacks use the other members.
  std::unique_ptr<coord::Agent> agent_;
  // Null until the watch starts.
  std::unique_ptr<FailureWatch> failure_watch_;
  std::unique_ptr<coord::AgentWatch> pending_watch_;
  std::unique_ptr<coord::AgentWatch> report_watch_;
};

}  // namespace ferry

#endif  // FERRY_NODE_NODE_H_
