// SPDX-License-Identifier: Apache-2.0
// TransferEngine: tensor transfers of a process; owns the rendezvous, the control channels and the
// transports.
#ifndef FERRY_NODE_TRANSFER_ENGINE_H_
#define FERRY_NODE_TRANSFER_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "net/event_loop.h"
#include "node/grpc_backend.h"
#include "node/identity.h"
#include "node/step.h"
#include "rendezvous/peer/eager_protocol.h"
#include "rendezvous/peer/peer_fetcher.h"
#include "rendezvous/rendezvous_manager.h"
#include "tensor/copy.h"
#include "tensor/host_arena.h"
#include "transport/control/connection_manager.h"
#include "transport/transports.h"

namespace ferry {

class EagerPeers;

class TransferEngine;
struct TransferReport;

// The protocol of requests and tensors between workers.
enum class WireProtocol {
  // Control channels and transports.
  kNative,
  // tensorflow.WorkerService over gRPC: a single port, compatible with TensorFlow's workers.
  kGrpc,
};

struct TransferEngineOptions {
  WireProtocol protocol = WireProtocol::kNative;
  // Address of the gRPC server, which WireProtocol::kGrpc and grpc_services need; port 0: any free
  // port.
  std::string grpc_listen = ":0";
  // Additional services of that server; if set, it runs whatever the protocol. Called once, when
  // everything but the server has been created; the services outlive Stop.
  std::function<std::vector<grpc::Service*>(TransferEngine&)> grpc_services;
  // Memory that can be shared with other processes of this host.
  HostArenaOptions arena;
  // Limits per step, and on the number of steps.
  RendezvousManagerOptions rendezvous;
  TransportOptions transports;
  // Transports in addition to the built-in ones, after them in the list;
  // docs/adding_a_transport.md.
  std::vector<TransportFactory> extra_transports;
  // Whether tensors in this process's GPU memory can be transferred. Without a GPU or driver this
  // has no effect. GPUs are initialized on first use.
  bool use_gpus = true;
  GpusOptions gpus;
  // "shm", "tcp", ...: the only transport that may be used; transfers that it cannot carry fail.
  // Empty: the cheapest one is selected.
  std::string require_transport;
  // Sends a checksum (XXH3) with every tensor and every message about it; the receiver verifies it.
  // Set it on all nodes: requests are covered only if the receiver's node enables it.
  bool checksum = false;
  // Sends small tensors, to peers that do the same, before they are requested. Ignored with
  // checksums, and with WireProtocol::kGrpc.
  bool eager = true;
  // Limits, for each peer, of what this node holds for receives that have not been posted.
  EagerLimits eager_limits;
  // Address for connections from peers of other hosts; port 0: any free port. ":PORT": all
  // addresses of the families that the kernel supports; "[::]:PORT" requires both. Empty: do not
  // listen.
  std::string listen = ":0";
  // Address published to peers: HOST, HOST:PORT, IPV6 or [IPV6]:PORT; empty: all addresses of this
  // host. The port is that of the protocol.
  std::string advertise;
  // This host's address in its connection to the coordinator, published first; empty if unknown.
  // See FindLocalEnd.
  std::string local_end;
  // HOST:PORT, for clients that mistake this node's gRPC port for the coordinator's.
  std::string coordinator;
  // Whether peers of this host may connect through a Unix socket.
  bool unix_socket = true;
  // The job's secret, with which every connection between nodes is authenticated. Empty:
  // $FERRY_JOB_TOKEN, the contents of $FERRY_JOB_TOKEN_FILE, or one that the first node generates
  // and publishes in the store.
  std::string token;
  // For WireProtocol::kGrpc, whose calls carry an authentication tag made with the token: rejects
  // calls without one. TensorFlow's workers send none.
  bool require_auth = false;
  // Busy-polling time before blocking, after each event and while waiting for one.
  absl::Duration spin = absl::Microseconds(20);
  absl::Duration connect_timeout = absl::Seconds(10);
  // Maximum time Step::Close waits for receivers to acknowledge delivery (one round trip).
  absl::Duration flush_timeout = absl::Seconds(1);
  // Send-queue limit per peer, in bytes, for messages that a slow peer has not read.
  size_t peer_queue_bytes = size_t{64} << 20;
  // Kernels for the GPUs; see Gpus::Create.
  cuda::CompiledKernels kernel_image = cuda::EmbeddedKernels();
};

// Thread-safe. Threads: "ferry-io", "ferry-data-N" (one for each TCP connection to a peer),
// "ferry-copy".
class TransferEngine final {
 public:
  //   self: complete but for its addresses, which are filled in.
  //   resolver: finds the endpoints of nodes.
  //   known: returns cached endpoints without blocking; used by WireProtocol::kGrpc only.
  //   nccl: the job's NCCL state; the library is located here if there are GPUs.
  //   Errors: INVALID_ARGUMENT for invalid options; UNAVAILABLE for an address that cannot be
  //   listened on; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<TransferEngine>> Start(TransferEngineOptions options,
                                                               Endpoint self,
                                                               EndpointResolver resolver,
                                                               KnownEndpoint known = {},
                                                               NcclJob nccl = {});
  // As Stop. Objects that a hung library may still use are leaked.
  ~TransferEngine();

  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // Pending operations fail with CANCELLED, and new ones are rejected. Received tensors stay valid.
  // No call but FailNode may run concurrently.
  //   Errors: DEADLINE_EXCEEDED a library hangs, and may still use the arguments of Start if it
  //   returns: they must live until the process exits. After OK they are no longer used.
  absl::Status Stop();

  // With its addresses filled in.
  const Endpoint& self() const { return transfer_context_.self; }
  TaskName task() const;

  RendezvousManager& rendezvous() { return *manager_; }
  EventLoop& loop() { return *loop_; }
  PeerFetcher& fetcher() { return *fetcher_; }
  HostArena& arena() { return *arena_; }
  // Null if this process uses no GPUs; why_no_gpus() gives the reason.
  Gpus* gpus() { return gpus_.get(); }
  const std::string& why_no_gpus() const { return why_no_gpus_; }
  // Its library is null without GPUs or if not found; nccl().library_unavailable_reason gives the
  // reason.
  const NcclJob& nccl() const { return nccl_; }
  const TransportList& transports() const { return transports_; }
  ConnectionManagerStats connection_stats() const { return connection_manager_->stats(); }
  // gRPC calls that failed authentication.
  int64_t refused_calls() const { return grpc_ == nullptr ? 0 : grpc_->refused_calls(); }
  HostArenaStats arena_stats() const { return arena_->stats(); }
  size_t arena_budget_bytes() const { return arena_budget_bytes_; }
  // Adds the paths from this process to itself and to the peers with an open control channel.
  void AddPaths(size_t bytes, size_t max_peers, TransferReport& report) const;

  // Opens the step of that id on this node.
  //   Errors: ABORTED it was closed; RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<Step> OpenStep(int64_t step_id);
  // Ends a step on this node, for every protocol.
  void Cleanup(int64_t step_id);

  // As RendezvousManager::ForEachPending, plus the transfers to peers that have left the
  // rendezvous.
  void ForEachPending(absl::Duration min_age, PendingVisitor visit) const;
  // Only the transfers to peers.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const;

  // Blocks until peers have acknowledged everything that was sent to them in the step, which has no
  // other outstanding operations, and so have had the chance to reject it. For peers that do not
  // answer at all it waits flush_timeout at most, and not again until they have answered. Returns
  // at once on the event loop's thread.
  // REQUIRES: an OutstandingOperations::Waiter of the step.
  void AwaitAcknowledgements(RemoteRendezvous& step, absl::Time deadline);

  // Notes that a receive has a deadline, so that it expires in time; see RendezvousManager::Expire.
  // REQUIRES: it has been posted. A timer that expires in between would not find it, and would not
  // be set again.
  void NoteDeadline(absl::Time deadline);

  // Returns the path that a tensor of `bytes` bytes takes from `source` to this process, and why
  // the other paths were not selected; for people and status reports.
  //   is_in_arena: whether it lies in the source's arena.
  //   from: memory that holds it at the source; to: memory in which it is to arrive here.
  //   Errors: as ExplainPath.
  absl::StatusOr<PathExplanation> PathFrom(const Endpoint& source, size_t bytes, bool is_in_arena,
                                           const TensorLocation& from = {},
                                           const TensorLocation& to = {}) const;

  // A node has died or was restarted: operations that need it fail with `why`, and its control
  // channels are closed, except those of incarnation `alive_incarnation` (0: no live one).
  void FailNode(int32_t node_id, const absl::Status& why, uint64_t alive_incarnation = 0);

 private:
  TransferEngine() = default;

  void FindGpus(const TransferEngineOptions& options);
  void FindNccl();
  void ScheduleExpiry(absl::Time at);

  size_t arena_budget_bytes_ = 0;
  absl::Duration flush_timeout_;
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<HostArena> arena_;
  std::unique_ptr<CopyPool> copier_;
  std::string why_no_gpus_;
  std::unique_ptr<Gpus> gpus_;
  NcclJob nccl_;
  std::unique_ptr<ConnectionManager> connection_manager_;
  TransportList transports_;
  TransferContext transfer_context_;
  // Null: every value is requested.
  std::unique_ptr<EagerPeers> eager_;
  std::unique_ptr<PeerFetcher> fetcher_;
  // Null unless the protocol is kGrpc or there are services.
  std::unique_ptr<GrpcBackend> grpc_;
  std::unique_ptr<RendezvousManager> manager_;
  // Duration of a local send and receive, measured at startup.
  absl::Duration local_latency_;
  std::atomic<int64_t> next_expiry_ns_{INT64_MAX};
  bool is_stopped_ = false;
  // Result of Stop.
  absl::Status stop_status_;
};

// The registrations of all transports of an engine with these options, in the order of its list.
//   nccl: as for TransferEngine::Start.
std::vector<TransportFactory> AllTransports(const TransferEngineOptions& options,
                                            const NcclJob& nccl = {});

// Returns the job's token, from the options or the environment; empty if neither sets it.
//   Errors: INVALID_ARGUMENT for a file that cannot be read, or is empty.
absl::StatusOr<std::string> FindToken(const TransferEngineOptions& options, GetEnv get_env);

}  // namespace ferry

#endif  // FERRY_NODE_TRANSFER_ENGINE_H_
