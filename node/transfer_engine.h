// SPDX-License-Identifier: Apache-2.0
// TransferEngine: a process's part in moving tensors; owns the rendezvous, the control channels and
// the transports.
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
#include "rendezvous/peer/peer_fetcher.h"
#include "rendezvous/rendezvous_manager.h"
#include "tensor/copy.h"
#include "tensor/host_arena.h"
#include "transport/control/connection_manager.h"
#include "transport/transports.h"

namespace ferry {

class TransferEngine;
struct TransferReport;

// What carries requests and values between workers.
enum class Carrier {
  // Control channels and transports.
  kLane,
  // tensorflow.WorkerService over gRPC: one port, and TensorFlow's workers understand it.
  kGrpc,
};

struct TransferEngineOptions {
  Carrier carrier = Carrier::kLane;
  // Of the gRPC server that Carrier::kGrpc, or what has services, needs; port 0 takes a free one.
  std::string grpc_listen = ":0";
  // What else that server has; with it there is one whatever the carrier. Called once, when
  // everything but the server is there; the services outlive Stop.
  std::function<std::vector<grpc::Service*>(TransferEngine&)> grpc_services;
  // Of memory that can be handed to other processes of this host.
  HostArenaOptions arena;
  // Limits of steps, and how many.
  RendezvousManagerOptions rendezvous;
  TransportOptions transports;
  // Whether tensors in the memory of this process's GPUs take part. No GPU, no driver: they do not,
  // and nothing else changes. Nothing is opened before it is used.
  bool use_gpus = true;
  GpusOptions gpus;
  // "shm", "tcp", ...: the only transport that will do; what it cannot carry fails. Empty: the
  // cheapest.
  std::string require_transport;
  // A checksum (XXH3) of every tensor goes along, and is compared; and so does one of every message
  // about it. Best on all nodes: requests are covered only where the receiver's node asks for it.
  bool checksum = false;
  // Where peers of other hosts connect to; port 0 takes a free one. ":PORT": on every address of
  // the families that the kernel has; "[::]:PORT" needs both. Empty: nowhere.
  std::string listen = ":0";
  // HOST or HOST:PORT that peers are told, IPV6 or [IPV6]:PORT; empty: all addresses of this host.
  // The port is that of the carrier.
  std::string advertise;
  // This host's address in its connection to the coordinator, which is the first of the published
  // addresses; empty if it is not known. See FindLocalEnd.
  std::string local_end;
  // HOST:PORT, for clients that take this node's gRPC port for the coordinator's.
  std::string coordinator;
  // Whether peers of this host may come through a Unix socket.
  bool unix_socket = true;
  // The job's secret, which every connection between nodes has to prove. Empty: $FERRY_JOB_TOKEN,
  // the contents of $FERRY_JOB_TOKEN_FILE, or one that the first node draws and leaves in the
  // store.
  std::string token;
  // Of Carrier::kGrpc, whose calls carry a proof of the token: whether calls without one are
  // refused. TensorFlow's workers prove nothing.
  bool require_proof = false;
  // How long to look for more before sleeping, after something has come and while waiting for it.
  absl::Duration spin = absl::Microseconds(20);
  absl::Duration connect_timeout = absl::Seconds(10);
  // Who closes a step waits so long for peers to hear of what was sent to them, which takes no more
  // than a message there and back.
  absl::Duration flush_timeout = absl::Seconds(1);
  // What is kept of messages for a peer that does not take them.
  size_t lane_queue_bytes = size_t{64} << 20;
  // Of kernels for its GPUs; see Gpus::Create.
  cuda::CompiledKernels kernel_image = cuda::EmbeddedKernels();
};

// Thread-safe. Threads: "ferry-lane", "ferry-data-N" (one for each TCP connection of a pair),
// "ferry-copy".
class TransferEngine final {
 public:
  // `self`: everything but its addresses, which are filled in. `resolver`: where nodes are.
  //   Errors: INVALID_ARGUMENT for options that make no sense; UNAVAILABLE for an address that
  //   cannot be listened on; RESOURCE_EXHAUSTED.
  // `known`: those of it that need no waiting; only Carrier::kGrpc asks.
  // `nccl`: what the job has for NCCL; its library is found here, if there are GPUs.
  static absl::StatusOr<std::unique_ptr<TransferEngine>> Start(TransferEngineOptions options,
                                                               Endpoint self,
                                                               EndpointResolver resolver,
                                                               KnownEndpoint known = {},
                                                               NcclJob nccl = {});
  // As Stop. What a library may still use then is left to the process's end.
  ~TransferEngine();

  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // Everything that waits ends CANCELLED, and nothing is begun any more. Tensors that were received
  // stay good. With no other call under way but FailNode.
  //   Errors: DEADLINE_EXCEEDED a library hangs, and what was given to Start may be used if it
  //   comes back: it must stay until the process ends. If it is OK, nothing of it is used any more.
  absl::Status Stop();

  // With its addresses.
  const Endpoint& self() const { return transfer_context_.self; }
  TaskName task() const;

  RendezvousManager& rendezvous() { return *manager_; }
  EventLoop& loop() { return *loop_; }
  PeerFetcher& fetcher() { return *fetcher_; }
  HostArena& arena() { return *arena_; }
  // Null if this process uses none, which why_no_gpus() explains.
  Gpus* gpus() { return gpus_.get(); }
  const std::string& why_no_gpus() const { return why_no_gpus_; }
  // Null where there are no GPUs or it was not found, which nccl().why_no_library explains.
  const NcclJob& nccl() const { return nccl_; }
  const TransportList& transports() const { return transports_; }
  ConnectionManagerStats lane_stats() const { return hub_->stats(); }
  // Calls over gRPC that did not prove what they should.
  int64_t refused_calls() const { return grpc_ == nullptr ? 0 : grpc_->refused_calls(); }
  HostArenaStats arena_stats() const { return arena_->stats(); }
  size_t arena_budget_bytes() const { return arena_budget_bytes_; }
  // Adds the ways from here to this process and the peers with which there are control channels.
  void AddPaths(size_t bytes, size_t max_peers, TransferReport& report) const;

  // The step of that id, opened here.
  //   Errors: ABORTED it was closed; RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<Step> OpenStep(int64_t step_id);
  // Ends a step here, whatever carries it.
  void Cleanup(int64_t step_id);

  // RendezvousManager::ForEachPending, and what has left the rendezvous and is on its way to
  // others.
  void ForEachPending(absl::Duration min_age, PendingVisitor visit) const;
  // Only the latter.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const;

  // Waits until peers have heard of everything that was sent to them in that step, which has no
  // other operations any more, and so have had the chance to decline it; for those that do not
  // answer at all flush_timeout at most, and not again before they do. On the loop: not at all.
  // REQUIRES: an OutstandingOperations::Waiter of the step.
  void AwaitAcknowledgements(RemoteRendezvous& step, absl::Time deadline);

  // A receive may have a deadline from now on; see RendezvousManager::Expire.
  void NoteDeadline(absl::Time deadline);

  // Which way a tensor of `bytes` from `source` to here takes, and why not another one; for people
  // and status reports. `is_in_arena`: whether it lies in the source's arena.
  //   Errors: as ExplainPath.
  // `from`: whose memory it is in there; `to`: is wanted in here.
  absl::StatusOr<PathExplanation> PathFrom(const Endpoint& source, size_t bytes, bool is_in_arena,
                                           const TensorLocation& from = {},
                                           const TensorLocation& to = {}) const;

  // A node has died, or was restarted: everything that needs it ends with `why`, and so do its
  // control channels, but for those of the life that is there now, if any (0: none).
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
  std::unique_ptr<ConnectionManager> hub_;
  TransportList transports_;
  TransferContext transfer_context_;
  std::unique_ptr<PeerFetcher> fetcher_;
  // Null unless it is the carrier, or there are services.
  std::unique_ptr<GrpcBackend> grpc_;
  std::unique_ptr<RendezvousManager> manager_;
  // What a send and its receive take within this process, as measured when it started.
  absl::Duration local_exchange_;
  std::atomic<int64_t> next_expiry_ns_{INT64_MAX};
  bool is_stopped_ = false;
  // What Stop has said.
  absl::Status stop_status_;
};

// The job's token, from the options or the environment; empty: neither says.
//   Errors: INVALID_ARGUMENT for a file that cannot be read, or is empty.
absl::StatusOr<std::string> FindToken(const TransferEngineOptions& options, GetEnv get_env);

}  // namespace ferry

#endif  // FERRY_NODE_TRANSFER_ENGINE_H_
