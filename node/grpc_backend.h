// SPDX-License-Identifier: Apache-2.0
// GrpcBackend: values from and to other workers as tensorflow.WorkerService has them.
#ifndef FERRY_NODE_GRPC_BACKEND_H_
#define FERRY_NODE_GRPC_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "rendezvous/proof_policy.h"
#include "rendezvous/rendezvous_manager.h"
#include "tensor/host_arena.h"
#include "transport/transport.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace ferry {

// The endpoint of a node that has been looked up before; does not block.
using KnownEndpoint = std::function<absl::StatusOr<Endpoint>(int32_t node_id)>;

struct GrpcBackendOptions {
  // Of every value and of what is asked for; see GrpcTensorFetcherOptions.
  bool checksum = false;
  // What this node proves, and what it wants proved.
  ProofPolicy proof;
  // HOST:PORT, for clients that take a node's port for the coordinator's; empty: not known.
  std::string coordinator;
  // Of Stop: how long tensors that are on their way may take.
  absl::Duration grace = absl::Seconds(10);
};

// Where only one port is open, or the other side is TensorFlow. Thread-safe. Threads: gRPC's.
class GrpcBackend final {
 public:
  GrpcBackend(KnownEndpoint endpoints, std::shared_ptr<HostArena> arena,
              GrpcBackendOptions options);
  ~GrpcBackend();

  RemoteFetcher& fetcher();

  // Serves what is sent here on HOST:PORT; port 0 takes a free one, and ":PORT" is every address of
  // the families that the kernel has. `manager` outlives it.
  //   Errors: UNAVAILABLE when it cannot listen there.
  // `gpus`: of this process; may be null; outlives it.
  // `services`: more of them, on the same port; outlive Stop.
  absl::Status Serve(RendezvousManager& manager, const PeerId& self, const std::string& listen,
                     Gpus* gpus, const std::vector<grpc::Service*>& services = {});
  // 0: does not serve.
  int port() const;
  // Calls that did not prove what they should.
  int64_t refused_calls() const;
  void CleanupStep(int64_t step_id);
  // Values that are on their way from here for at least `min_age`.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const;
  // The node has died or moved.
  void Forget(int32_t node_id);
  // It has died, for that reason: what is on its way there is lost.
  void FailTransfers(int32_t node_id, const absl::Status& why);
  // No call comes any more; returns when the tensors that are on their way have arrived, or after
  // GrpcBackendOptions::grace, or at once when some are of nodes that have died; and a second later
  // at most when other calls or connections are there.
  // Before: whatever waits in the manager has been ended.
  void Stop();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ferry

#endif  // FERRY_NODE_GRPC_BACKEND_H_
