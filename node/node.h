// SPDX-License-Identifier: Apache-2.0
// Node: a process that has joined a job; the public facade.
#ifndef FERRY_NODE_NODE_H_
#define FERRY_NODE_NODE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/cancellation_token.h"
#include "coord/client/agent.h"
#include "gpu/clique/communicator.h"
#include "gpu/discovery.h"
#include "node/identity.h"
#include "node/step.h"
#include "node/transfer_engine.h"
#include "tensorflow/worker/limits.h"
#include "topology/global_topology.h"

namespace ferry {

class CommunicatorCache;
class CommunicatorRegistry;
class NodeWatch;
class NodeWorker;

// The port of a coordinator when nobody names one.
inline constexpr int kDefaultCoordinatorPort = 9470;

struct NodeOptions {
  // Which node of how many this is. Absent: what the environment says (ReadIdentity).
  std::optional<int> node_id;
  std::optional<int> num_nodes;
  // HOST:PORT. Empty: what the environment says, see ResolveNodeIdentity.
  std::string coordinator;
  // How long Join waits for the coordinator and for the other nodes to join.
  absl::Duration connect_timeout = absl::Minutes(5);
  // How long Join waits for the devices of the other nodes, who have all joined by then.
  absl::Duration enumerate_timeout = absl::Minutes(5);
  // See coord::AgentOptions, here and below.
  absl::Duration answer_timeout = absl::Seconds(30);
  absl::Duration lost_timeout = absl::ZeroDuration();
  bool recoverable = false;
  std::function<void(absl::Status)> on_error;
  // Keep a copy to call Join off while it waits.
  std::shared_ptr<CancellationToken> connect_stop = std::make_shared<CancellationToken>();
  // Whether other nodes may use the GPUs of this one. A job refuses two nodes with one GPU, which
  // is a mistake mostly; where it is meant, all that share say so, and the job does not learn the
  // UUIDs of their GPUs.
  bool share_gpus = false;
  // Of each GPU's memory: beyond it, communicators of Communicator() that nobody has make room. 0:
  // none are kept.
  uint64_t kept_communicator_bytes = uint64_t{1} << 30;
  // Of moving tensors; without it a node has no part in that, and no threads for it.
  bool exchanges_tensors = true;
  TransferEngineOptions exchange;
  // Whether it runs parts of TensorFlow's graphs, for whoever asks tensorflow.WorkerService.
  bool runs_graphs = false;
  // Nodes of graphs that run at the same time; 0: as many as there are processors.
  int graph_threads = 0;
  // Of what masters may ask.
  worker::WorkerLimits graph_limits;
};

// Every node that has joined publishes where its tensors can be had within this time.
inline constexpr absl::Duration kAddressTimeout = absl::Seconds(30);

// Of Node::Key.
struct AddressWait {
  absl::Duration timeout = kAddressTimeout;
  // Outlives the call; null: nobody calls it off.
  CancellationToken* cancellation = nullptr;
};

// Who a process is in its job, and where the coordinator is. A plain value.
struct NodeIdentity {
  int node_id = 0;
  // Absent when only the coordinator knows.
  std::optional<int> num_nodes;
  std::string coordinator;
  // Nobody named the coordinator: its place follows from the job's first machine, and node 0 is
  // meant to run it there (see `ferry worker`).
  bool is_derived = false;
  // For people: "node 3 of 8 (SLURM_PROCID, SLURM_NTASKS)".
  std::string description;
};

// Options first, then the environment. A coordinator that neither names is expected at the first
// machine's identity.port_hint, or at kDefaultCoordinatorPort where there is no such hint.
//   Errors: INVALID_ARGUMENT saying what is missing, out of range or contradictory.
absl::StatusOr<NodeIdentity> ResolveNodeIdentity(const NodeOptions& options, GetEnv get_env);

// The job of a process that ResolveNodeIdentity refuses, as far as it is known.
struct RefusedNode {
  // As in NodeIdentity.
  std::string coordinator;
  bool is_derived = false;
  std::optional<int> node_id;
  std::optional<int> num_nodes;
  // It may have been meant to be node 0, although node_id may say otherwise: something says so, or
  // nothing gives a valid number.
  bool may_be_first = false;
};

// Absent if neither options nor environment show that this process, which ResolveNodeIdentity
// refuses, was to be one of a job, so that it may be a command that was typed by hand; or if they
// do not say where its coordinator is.
std::optional<RefusedNode> FindRefusedNode(const NodeOptions& options, GetEnv get_env);

// The error with which the other processes of a job fail if one fails with `why` before it joins.
absl::Status CannotTakePart(const absl::Status& why);

// How long a process that cannot join waits for others, which may start later, to fail them.
inline constexpr absl::Duration kReportTimeout = absl::Seconds(20);

// For a process that was to be part of a job and cannot be: processes that wait for the job at
// `coordinator` to be complete fail with `why`, or else those that come within `timeout`. A job
// that is complete is not affected. Blocks until one has failed, or none will.
void ReportCannotJoin(const std::string& coordinator, const absl::Status& why,
                      absl::Duration timeout = kReportTimeout,
                      std::shared_ptr<CancellationToken> stop = nullptr);

// As ResolveNodeIdentity, for a process that is about to join. If it is refused and FindRefusedNode
// finds its job, the other processes of the job fail with the reason: see ReportCannotJoin.
absl::StatusOr<NodeIdentity> FindPlaceOrReport(const NodeOptions& options, GetEnv get_env,
                                               absl::Duration timeout = kReportTimeout);

// A node of a job: identity, devices, connection and topology in one object.
//   FERRY_ASSIGN_OR_RETURN(std::unique_ptr<Node> node, Node::Join({}));
//   node->agent().Barrier("loaded", absl::Minutes(1));
//   node->Shutdown();
// Thread-safe. Owns its agent and the agent's threads. One that is destroyed without Shutdown or
// Leave is missed by the others after the heartbeat timeout, and fails their job.
class Node final {
 public:
  // Finds this process's place and devices, joins, and waits until every node has done so and all
  // hold the same topology. Blocks. Starts no coordinator.
  //   Errors: INVALID_ARGUMENT as ResolveNodeIdentity; the rest as coord::Agent::Connect and
  //   Enumerate. A node that fails after it was counted in tells the others, as FailJob. A process
  //   that finds no place, or is refused the one it has found, tells them as ReportCannotJoin,
  //   unless options.recoverable.
  static absl::StatusOr<std::unique_ptr<Node>> Join(NodeOptions options);

  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  int node_id() const { return place_.node_id; }
  int num_nodes() const { return agent_->num_nodes(); }
  const NodeIdentity& place() const { return place_; }

  // The devices of all nodes; the same on each of them.
  const GlobalTopology& topology() const { return topology_; }
  // The devices of this one, and why others were not found.
  const LocalDiscovery& discovery() const { return discovery_; }

  // The store, barriers, and status of the job.
  coord::Agent& agent() { return *agent_; }

  // --- Tensors ---

  // Memory for a tensor on `device` of this node ("host:0", "gpu:1"), its elements undefined. What
  // lies there is handed to processes of this host without a copy.
  //   Errors: INVALID_ARGUMENT for a device that there is not; RESOURCE_EXHAUSTED naming the
  //   option; FAILED_PRECONDITION without options.exchanges_tensors, here and below.
  absl::StatusOr<Tensor> Allocate(absl::string_view device, DataType dtype, const Shape& shape);

  // The key of a value called `name` from a device of node `from` to one of node `to`, in whose
  // memory it arrives. Both sides make it for themselves. Looks the sender's incarnation up, once,
  // if that is not here.
  //   wait: for a sender that has joined, and not told yet where its tensors can be had.
  //   Errors: INVALID_ARGUMENT for a node that there is not, or as RendezvousKey::CheckEdge;
  //   DEADLINE_EXCEEDED naming the sender and what is known of it; UNAVAILABLE it has died before;
  //   CANCELLED.
  absl::StatusOr<RendezvousKey> Key(absl::string_view name, int from, int to,
                                    absl::string_view from_device = "host:0",
                                    absl::string_view to_device = "host:0",
                                    const AddressWait& wait = {});

  // The step of that id, opened here. Ids are the job's to choose; one that was closed here is
  // over.
  //   Errors: ABORTED it was closed; RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<Step> OpenStep(int64_t step_id);

  // Which way a tensor of `bytes` takes from node `from` to here, and why not another one.
  // from_place: whose memory it is in there; to: is wanted in here.
  absl::StatusOr<PathExplanation> PathFrom(int from, size_t bytes, bool is_in_arena = true,
                                           const TensorLocation& from_place = {},
                                           const TensorLocation& to = {});

  // The communicator of these GPUs, by their global ids in the order of its ranks; every node that
  // has one of them calls this with the same list, at the same time. The ids that NCCL needs go
  // through the store. While somebody here has it, further calls get the same one. When nobody here
  // has it any more, it is kept for the next call, if nothing of Run's is under way on it and NCCL
  // has no complaint; beyond NodeOptions::kept_communicator_bytes the longest unused go, but for
  // those that another rank uses. Otherwise it is aborted, and with that over for all ranks: then
  // all make a new one. What was done with get() must be over before it is let go of, or
  // Abort be called. Several threads may ask for different ones of the same GPUs, in any order. But
  // where collectives are under way on these GPUs, this has its place in their order, as they have
  // among each other. Blocks; the node outlives it.
  //   own: which of them this call is for; needed when several are this node's. Each then needs a
  //   thread of its own to call this.
  //   Errors: INVALID_ARGUMENT for a device that is no GPU of the job, or none that is this node's;
  //   FAILED_PRECONDITION this process uses no GPUs, or ranks have different versions of NCCL;
  //   UNAVAILABLE there is no NCCL, naming where it was looked for, or a rank has died; ABORTED one
  //   was restarted; as NcclCommunicator::Make.
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Communicator(
      const std::vector<int>& devices, std::optional<int> own = std::nullopt,
      CommunicatorOptions options = {});

  // REQUIRES: options.exchanges_tensors.
  TransferEngine& exchange() { return *exchange_; }

  // HOST:PORT of this node's tensorflow.WorkerService, or several with commas between them, in the
  // order in which to try them; empty if it runs no graphs.
  std::string graph_address() const;

  // How long Join waited for the coordinator, the other nodes and their devices.
  absl::Duration join_time() const { return join_time_; }

  // Leaves together with every other node. Blocks until all are here or the coordinator's
  // --shutdown-timeout is over.
  absl::Status Shutdown() { return agent_->Shutdown(); }
  // Leaves at once; the others go on.
  absl::Status Leave() { return agent_->Leave(); }
  // Leaves because of `why`, which must not be OK: whoever waits for this node hears it at once,
  // and not only that the node is gone when its heartbeats are missed. The job has failed with it,
  // unless the node is recoverable. Blocks for seconds at most, and returns whether or not the
  // coordinator could be told.
  void FailJob(const absl::Status& why);

 private:
  Node() = default;

  absl::Status StartExchange(const NodeOptions& node);
  absl::Status CheckExchange() const;
  absl::StatusOr<Endpoint> EndpointOf(int node_id, const AddressWait& wait = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::string> WaitForAddress(int node_id, const AddressWait& wait)
      ABSL_LOCKS_EXCLUDED(mu_);
  void WatchNodes();
  void OnNodes(const coord::NodeTable& table) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant once joined.
  NodeIdentity place_;
  LocalDiscovery discovery_;
  GlobalTopology topology_;
  absl::Duration join_time_;
  absl::Mutex mu_;
  // As they were when they were looked up; looked up again when they have died.
  absl::flat_hash_map<int, Endpoint> endpoints_ ABSL_GUARDED_BY(mu_);
  // The lives that are there now, as far as the job has said.
  absl::flat_hash_map<int, uint64_t> incarnations_ ABSL_GUARDED_BY(mu_);
  // Those that have died, and what the job says of it.
  absl::flat_hash_map<int, absl::Status> failed_ ABSL_GUARDED_BY(mu_);
  // NcclTransportOptions::abort_timeout, for those that are kept.
  absl::Duration abort_timeout_;
  std::unique_ptr<CommunicatorRegistry> ledger_;
  // Null unless it moves tensors. Stops before the exchange.
  std::shared_ptr<CommunicatorCache> kept_;
  std::unique_ptr<TransferEngine> exchange_;
  // Null unless it runs graphs. Goes when the exchange has stopped, and before it.
  std::unique_ptr<NodeWorker> worker_;
  // These last, so that they go first: their callbacks use the rest.
  std::unique_ptr<coord::Agent> agent_;
  // Null before it watches.
  std::unique_ptr<NodeWatch> node_watch_;
  std::unique_ptr<coord::AgentWatch> pending_watch_;
  std::unique_ptr<coord::AgentWatch> report_watch_;
};

}  // namespace ferry

#endif  // FERRY_NODE_NODE_H_
