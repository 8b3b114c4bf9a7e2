// SPDX-License-Identifier: Apache-2.0
// Node: this process as a member of a job.
#ifndef FERRY_INCLUDE_FERRY_NODE_H_
#define FERRY_INCLUDE_FERRY_NODE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include <ferry/cancellation_token.h>
#include <ferry/coordinator_client.h>
#include <ferry/device.h>
#include <ferry/external_nccl_scope.h>
#include <ferry/memory_registration.h>
#include <ferry/namespace.h>
#include <ferry/nccl_communicator.h>
#include <ferry/step.h>
#include <ferry/tensor.h>
#include <ferry/topology.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// How a node sends and receives tensors.
struct TransferOptions {
  // false: the node moves no tensors, and starts no threads for them.
  bool enabled = true;
  // Whether tensors in the memory of this process's GPUs can be sent and received. Has no effect
  // without a GPU or a driver. A GPU is initialized on its first use.
  bool use_gpus = true;
  // Whether streams of GPUs wait on the device for tensors that their sender has not completed
  // yet, in place of this process's threads, which notice up to 1 ms later that they are complete.
  // A receive with RecvOptions::stream is then done before the bytes are there. But a stream waits
  // for ever if the sender dies before, and delays streams that share its hardware queue, those of
  // NCCL too. Set it on both nodes.
  bool gpus_wait_on_device = false;
  // Memory of each GPU that is used, in bytes, and pinned host memory, that are allocated when the
  // GPU is opened (Node::PrepareGpu) and kept, so that later transfers need none from the driver. A
  // GPU's memory is divided into segments of gpu_reserve_segment_bytes, each of which holds tensors
  // of one size at a time; larger tensors are not placed there. Sizes are rounded up to 2 MiB,
  // those of pinned memory to 4096 bytes. At most 2 GiB of each GPU can be reserved, and 1 GiB of
  // pinned memory, or an eighth of the memory that this process may use if that is less.
  size_t gpu_reserve_bytes = 0;
  size_t gpu_reserve_segment_bytes = size_t{32} << 20;
  size_t pinned_reserve_bytes = 0;
  // Allocates the staging ring, 64 MiB of each GPU, at the same time: tensors in memory that
  // other processes cannot map go through it.
  bool gpu_reserve_staging = false;
  // How long memory of other processes that may stay mapped (Node::RegisterMemory) does so without
  // being used. Zero: it is unmapped behind each transfer.
  absl::Duration gpu_mapping_idle_timeout = absl::Seconds(10);
  // Address for connections of peers on other hosts; port 0: any free port. ":PORT": all addresses
  // of this host. Empty: do not listen.
  std::string listen_address = ":0";
  // The address that peers connect to: HOST or HOST:PORT. Empty: all addresses of this host.
  std::string advertised_address;
  // Whether peers of this host may connect through a Unix socket.
  bool use_unix_sockets = true;
  // The name of the only transport that may be used, such as "tcp"; transfers that it cannot carry
  // fail. Small tensors may still come "eager" or "inline", and tensors within the process by
  // "local" (Request::path). Empty: the one with the lowest estimated cost.
  std::string required_transport;
  // Enables the eager protocol for small tensors, which are then sent before they are requested.
  // Both nodes must enable it. Ignored with checksums.
  bool use_eager_sends = true;
  // Sends a checksum with every tensor, which the receiver verifies. Set it on all nodes.
  bool use_checksums = false;
  // The secret that authenticates every connection between nodes; the same on all nodes. Empty:
  // FERRY_JOB_TOKEN, the content of FERRY_JOB_TOKEN_FILE, or one that the first node generates and
  // publishes in the store.
  std::string job_token;
  // Limit on the host memory, in bytes, that Node::Allocate shares with other processes. 0: 4 GiB,
  // or half of the memory that this process may use if that is less.
  size_t max_host_bytes = 0;
  // How long a thread that waits for a transfer polls before it sleeps. Longer polling saves
  // wake-ups of some microseconds each, and takes a core meanwhile.
  absl::Duration polling_time = absl::Microseconds(20);
  // The limit on connecting to a peer.
  absl::Duration connect_timeout = absl::Seconds(10);
  // How long Flush and Close wait for a peer's acknowledgement after it has fetched everything.
  absl::Duration acknowledgement_timeout = absl::Seconds(1);
};

struct NodeOptions {
  // Rank of this process and number of processes. Absent: from the environment of `ferry run`,
  // torchrun, Open MPI, MPICH, Slurm, Kubernetes, or FERRY_NODE_ID and FERRY_NUM_NODES.
  std::optional<int> rank;
  std::optional<int> num_nodes;
  // HOST:PORT. Empty: from the environment (FERRY_COORDINATOR).
  std::string coordinator_address;
  // How long Join waits for the coordinator and for the other nodes to join.
  absl::Duration connect_timeout = absl::Minutes(5);
  // How long Join then waits for the other nodes' devices.
  absl::Duration topology_timeout = absl::Minutes(5);
  // The limit on calls to the coordinator that do not wait for other nodes.
  absl::Duration rpc_timeout = absl::Seconds(30);
  // How long the coordinator may be unreachable before this node abandons the job. Zero: the
  // coordinator's heartbeat timeout for this node.
  absl::Duration coordinator_reconnect_timeout = absl::ZeroDuration();
  // This node may die and come back without failing the job.
  bool is_recoverable = false;
  // Called once, when the job has failed or the coordinator is lost, on a thread of the node or on
  // one that waits in a call of a CoordinatorClient. It must not block, throw, or destroy the node;
  // calls that wait for the coordinator fail there with FAILED_PRECONDITION. Pending operations end
  // by themselves.
  std::function<void(const absl::Status&)> on_job_failure;
  // Ends Join.
  std::optional<CancellationToken> cancellation;
  // This node's GPUs may also be used by other nodes; set it on all of them.
  bool share_gpus = false;
  // Memory of each GPU, in bytes, that idle NCCL communicators may keep for their next use.
  uint64_t communicator_cache_bytes = uint64_t{1} << 30;
  TransferOptions transfer;
};

// Joins a job, and owns what a process needs in it. Thread-safe.
//   absl::StatusOr<std::unique_ptr<ferry::Node>> node = ferry::Node::Join();
// It must outlive its steps, communicators, coordinator() and topology(). A child of fork must not
// use or destroy it, since its threads are the parent's; one that calls exec is no matter.
class Node {
 public:
  // Joins, and blocks until every node has joined and all hold the same topology. Does not start a
  // coordinator: `ferry run` or `ferry coordinator` does.
  //   Errors: INVALID_ARGUMENT saying what is missing, out of range or contradictory in options and
  //   environment; DEADLINE_EXCEEDED naming the nodes that have not joined, or the address that did
  //   not answer; ALREADY_EXISTS the rank is taken; FAILED_PRECONDITION the coordinator serves a
  //   job of another size, or a launched process failed before it joined; ABORTED the job has
  //   failed; UNAVAILABLE an address to listen on is taken; RESOURCE_EXHAUSTED; the reason of the
  //   cancellation. Other nodes that wait for this one fail with its error, unless is_recoverable:
  //   after an error of options or environment it waits for one of them to hear of it, for 20 s at
  //   most, within connect_timeout.
  static absl::StatusOr<std::unique_ptr<Node>> Join(NodeOptions options = {});

  // Leaves the job, unless it has left, and ends pending operations of this process with CANCELLED.
  // Local: does not wait for other nodes, which continue; waits for the coordinator's answer, for
  // seconds at most, and for GPU work that Ferry has enqueued. Tensors stay valid.
  ~Node();

  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  int rank() const;
  int num_nodes() const;
  // The devices of all nodes, the same on each.
  const Topology& topology() const;
  // Key-value store, barriers and membership.
  CoordinatorClient& coordinator();

  // Allocates a tensor on a device of this node, uninitialized. Processes of this host receive such
  // tensors without a copy.
  //   Errors: INVALID_ARGUMENT naming the devices that there are, or for a type or shape as
  //   Tensor::Allocate; RESOURCE_EXHAUSTED naming the limit; FAILED_PRECONDITION
  //   TransferOptions::enabled is false, or this process uses no GPUs.
  absl::StatusOr<Tensor> Allocate(Device device, DataType dtype, absl::Span<const int64_t> shape);

  // Opens a GPU of this node now, with the memory that TransferOptions reserve, and not on its
  // first use. Blocks for hundreds of milliseconds, or seconds.
  //   Errors: INVALID_ARGUMENT the device is not a GPU of this node, or more of it is reserved than
  //   can be; FAILED_PRECONDITION this process uses no GPUs; RESOURCE_EXHAUSTED less memory of the
  //   GPU is free than is reserved; DEADLINE_EXCEEDED NCCL work was in flight, or the GPU was not
  //   opened in two minutes.
  absl::Status PrepareGpu(Device device);
  // Lets other processes of this host keep the allocation that holds the tensor mapped while the
  // result exists, so that they do not map it for each transfer. The registration covers the whole
  // allocation: for PyTorch, register one tensor of a segment. With expandable segments an
  // allocation is a piece of physical memory: those that the tensor touches are registered.
  //   Errors: INVALID_ARGUMENT the tensor is not in the memory of a GPU; FAILED_PRECONDITION this
  //   process uses no GPUs, or the reason why other processes cannot map the memory.
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(const Tensor& tensor);
  // Call before the program enqueues work of an NCCL of its own on the GPU: see ExternalNcclScope.
  // Blocks until tensors that move over NCCL there have arrived.
  //   Errors: as PrepareGpu; DEADLINE_EXCEEDED naming what was waited for.
  absl::StatusOr<std::unique_ptr<ExternalNcclScope>> BeginExternalNccl(
      Device device, absl::Duration timeout = absl::Minutes(1));

  // Opens a step on this node. The program chooses the ids.
  //   Errors: ABORTED the step was closed on this node; RESOURCE_EXHAUSTED naming the limit;
  //   FAILED_PRECONDITION TransferOptions::enabled is false.
  absl::StatusOr<Step> OpenStep(int64_t step_id);

  // Returns the path that a tensor of `bytes` bytes would take to this node, and why the others
  // were not selected, for people: "shm (0.4us measured 2s ago, no copy); not tcp: ...". Small
  // tensors may come "eager" or "inline" instead. The name of `id` does not matter.
  //   is_allocated: it is one of the sender's Node::Allocate.
  //   Errors: INVALID_ARGUMENT the destination is not this node, or there is no such node;
  //   UNAVAILABLE or ABORTED the sender has died or left; FAILED_PRECONDITION no transport can
  //   carry it, with the reason of each.
  absl::StatusOr<std::string> ExplainPath(const TensorId& id, size_t bytes,
                                          bool is_allocated = true);

  // Returns a communicator of these GPUs, given by their global ids in the order of their ranks in
  // it. Collective: every node that owns one of them calls this with the same list. A communicator
  // whose objects were destroyed while idle is kept for the next call. Blocks.
  //   Errors: INVALID_ARGUMENT for a device that is not a GPU of the job, or if none is this
  //   node's; FAILED_PRECONDITION this process uses no GPUs, or ranks have different versions of
  //   NCCL; UNAVAILABLE NCCL was not found, naming where it was looked for, or a rank has died;
  //   ABORTED a rank was restarted; DEADLINE_EXCEEDED naming the ranks that have not called this.
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Communicator(
      const std::vector<int>& devices, NcclCommunicatorOptions options = {});

  // Leaves the job now; the other nodes continue. Local. Close steps first: peers can no longer
  // fetch what this node has sent.
  absl::Status Leave();
  // Leaves the job together with all other nodes: blocks until every node has called this or has
  // failed, or the coordinator's --shutdown-timeout has passed.
  //   Errors: DEADLINE_EXCEEDED naming the nodes that did not call it; INTERNAL a node failed.
  absl::Status ShutdownCollective();
  // Leaves because of an error; operations that wait for this node fail with it at once. The job
  // fails, unless is_recoverable. Blocks for seconds at most.
  //   reason: OK counts as UNKNOWN.
  void FailJob(const absl::Status& reason);

 private:
  class Impl;
  friend class ApiAccess;

  explicit Node(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_NODE_H_
