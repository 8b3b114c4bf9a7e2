// SPDX-License-Identifier: Apache-2.0
// GrpcBackend: transfers tensors to and from other workers by tensorflow.WorkerService.
#ifndef FERRY_NODE_GRPC_BACKEND_H_
#define FERRY_NODE_GRPC_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "gpu/gpus.h"
#include "rendezvous/auth_policy.h"
#include "rendezvous/rendezvous_manager.h"
#include "tensor/host_arena.h"
#include "transport/transport.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace ferry {

// Returns the cached endpoint of a node; does not block.
using KnownEndpoint = std::function<absl::StatusOr<Endpoint>(int32_t node_id)>;

struct GrpcBackendOptions {
  // Adds a checksum to every tensor and request; see GrpcTensorFetcherOptions.
  bool checksum = false;
  // The authentication tag that this node sends, and that it requires of peers.
  AuthPolicy auth;
  // HOST:PORT, for clients that mistake a node's port for the coordinator's; empty: unknown.
  std::string coordinator;
  // Maximum time Stop waits for tensors in flight.
  absl::Duration grace = absl::Seconds(10);
};

// For hosts with a single open port, or TensorFlow peers. Thread-safe. Threads: gRPC's.
class GrpcBackend final {
 public:
  GrpcBackend(KnownEndpoint endpoints, std::shared_ptr<HostArena> arena,
              GrpcBackendOptions options);
  ~GrpcBackend();

  RemoteFetcher& fetcher();

  // Serves the tensors that are sent here on HOST:PORT; port 0: any free port; ":PORT": all
  // addresses of the families that the kernel supports. `manager` outlives this object.
  //   gpus: this process's GPUs; may be null; outlives this object.
  //   services: additional services on the same port; outlive Stop.
  //   Errors: UNAVAILABLE when it cannot listen there.
  absl::Status Serve(RendezvousManager& manager, const PeerId& self, const std::string& listen,
                     Gpus* gpus, const std::vector<grpc::Service*>& services = {});
  // 0 if it does not serve.
  int port() const;
  // Number of calls that failed authentication.
  int64_t refused_calls() const;
  void CleanupStep(int64_t step_id);
  // Visits the outgoing transfers that are at least `min_age` old.
  void ForEachTransfer(absl::Duration min_age, PendingVisitor visit) const;
  // Drops the connection to a node that has died or moved.
  void Forget(int32_t node_id);
  // The node has died because of `why`: transfers to it fail.
  void FailTransfers(int32_t node_id, const absl::Status& why);
  // Rejects new calls, and blocks until the tensors in flight have arrived, for
  // GrpcBackendOptions::grace at most, or not at all if some are for dead nodes; a second longer at
  // most if other calls or connections remain.
  // REQUIRES: all operations that wait in the manager have been ended.
  void Stop();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ferry

#endif  // FERRY_NODE_GRPC_BACKEND_H_
