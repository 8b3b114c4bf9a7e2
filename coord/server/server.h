// SPDX-License-Identifier: Apache-2.0
// CoordinatorServer: a coordinator with all its services on one port.
#ifndef FERRY_COORD_SERVER_SERVER_H_
#define FERRY_COORD_SERVER_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coord/core/coordinator_executor.h"
#include "coord/core/options.h"
#include "coord/server/call.h"
#include "coord/server/connection_watch.h"
#include "coord/server/control_service.h"
#include "coord/server/direct_control.h"
#include "coord/server/elastic_server.h"
#include "coord/server/handover_proto.h"
#include "coord/server/lighthouse_server.h"
#include "coord/server/tcp_store_server.h"
#include "coord/server/unary_service.h"
#include "coord/wire/device_info_proto.h"
#include "net/listener.h"
#include "net/paused_loop.h"
#include "net/socket_loop.h"

namespace ferry::coord {

struct ServerOptions {
  // HOST:PORT; port 0 means any free port. ":PORT" listens on every address of the families that
  // the kernel has, "[::]:PORT" on those of both.
  std::string listen = ":0";
  CoordinatorOptions coordinator;
  // A connection that is idle for this long is probed, and closed when the probe is not answered
  // within keepalive_timeout. NATs and load balancers drop idle connections after minutes. If the
  // sum of both exceeds half of the heartbeat timeout, gRPC's connections are probed
  // correspondingly sooner, since a call pending on one is a sign of life.
  absl::Duration keepalive_time = absl::Seconds(30);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  // How long a connection may take to show its protocol: see DirectControl::Take.
  absl::Duration hello_timeout = absl::Seconds(10);
  size_t max_silent_connections = 1024;
  // Decides from the authentication tag that a client of ferry.v1.Control sends whether it may end
  // the job. Null allows every client. Called with the executor's lock held.
  //   Errors: PERMISSION_DENIED.
  std::function<absl::Status(const Coordinator&, absl::string_view auth_tag)> check_end_job;
  // The store of the coordinator's port begins anew when it has had no client for this long. See
  // TcpStoreScopes.
  absl::Duration tcp_store_idle_timeout = absl::Seconds(1);
  // The quorums of torchft. The id of the first one is set by Create.
  LighthouseOptions lighthouse;
  // The rendezvous of PyTorch's nodes.
  ElasticOptions elastic;
  // The memory that the clients of all stores may hold. See TcpStoreBudget.
  size_t max_tcp_store_client_bytes = ShareOfMemory(size_t{1} << 30, 4);
  // The threads that serve them, at most TcpStoreServer::kMaxThreads.
  int tcp_store_threads = TcpStoreServer::DefaultThreads();
  // How long Stop waits for pending answers to be sent.
  absl::Duration stop_grace = absl::Seconds(2);
  // The state that the process image before this one has left: its listening sockets, in place of
  // `listen`, and the connections of PyTorch's stores. If the stores cannot be restored, their
  // connections are closed, and on_stores_lost is called with the reason.
  std::optional<HandoverState> predecessor;
  std::function<void(const absl::Status& why)> on_stores_lost;
  // Creates additional services for the same port; what they need outlives the server.
  std::function<std::vector<std::unique_ptr<grpc::Service>>(CoordinatorExecutor&,
                                                            GenericMethodTable&)>
      more_services;
};

// A server that accepts no connection and serves no store as long as this exists, so that its state
// is that of its sockets: what arrives meanwhile is in the kernel.
struct PausedServer {
  std::vector<PausedLoop> loops;
  HandoverState state;
};

// Thread-safe. Serves xla.DistributedRuntimeService, tensorflow.CoordinationService,
// xla.coordination.CoordinationService, ferry.v1.Control, gRPC health checking and reflection, all
// over one Coordinator; and torchft.LighthouseService. Threads: gRPC's own, the executor's timer,
// one that accepts, one for the agents' connections, and those of the stores.
class CoordinatorServer final {
 public:
  // Creates the server, already listening.
  //   Errors: INVALID_ARGUMENT for the options; UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Create(ServerOptions options);
  ~CoordinatorServer();

  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  // The port it listens on, and the address with that port.
  int port() const { return port_; }
  const std::string& address() const { return address_; }

  CoordinatorExecutor& executor() { return executor_; }
  Frontend& frontend() { return frontend_; }
  TcpStoreServer& tcp_store() { return *tcp_store_; }
  LighthouseServer& lighthouse() { return lighthouse_; }
  ElasticServer& elastic() { return *elastic_; }

  // The clients whose connections cannot be handed over, for a message: "2 tasks of a job". Empty
  // if there are none. Replicas of torchft do not count, unless they wait for a quorum: they
  // connect again.
  std::vector<std::string> ClientsThatPreventHandover();
  // Pauses the server to hand its stores over. REQUIRES: not stopped; ClientsThatPreventHandover()
  // is empty, or its result is not used to hand over.
  std::unique_ptr<PausedServer> Pause();

  // Ends pending calls as described in docs/protocols.md, then closes the port. Blocks for at most
  // about stop_grace. A second call does nothing.
  void Stop();

 private:
  CoordinatorServer(std::unique_ptr<Coordinator> coordinator, const ServerOptions& options);

  const absl::Duration stop_grace_;
  CoordinatorExecutor executor_;
  Frontend frontend_;
  DeviceInfoMerger devices_;
  GenericMethodTable generic_method_table_;
  LighthouseServer lighthouse_;
  ControlSessions sessions_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  // Serves PyTorch's clients.
  std::unique_ptr<TcpStoreServer> tcp_store_;
  // Serves the agents' connections, and passes the rest to tcp_store_, elastic_ and the acceptor.
  std::unique_ptr<DirectControl> direct_;
  // Serves PyTorch's rendezvous, on the agents' loop.
  std::unique_ptr<ElasticServer> elastic_;
  // Watches gRPC's connections for their end.
  std::unique_ptr<ConnectionWatch> watch_;
  // Passes new connections to those two, on a thread of its own: thousands of nodes that connect at
  // once delay no frame of those that have.
  std::shared_ptr<SocketLoop> accept_loop_;
  std::unique_ptr<Listener> listener_;
  int port_ = 0;
  std::string address_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_SERVER_H_
