// SPDX-License-Identifier: Apache-2.0
// The only file of these tests that includes internal headers.
#include "coordinator_server.h"

#include "coord/server/server.h"

std::shared_ptr<void> StartCoordinator(int num_nodes, std::string& address) {
  ferry::coord::ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.stop_grace = absl::Milliseconds(500);
  options.coordinator.jobs = {{"jax_worker", num_nodes}};
  options.coordinator.register_timeout = absl::Minutes(1);
  options.coordinator.heartbeat_timeout = absl::Minutes(1);
  options.coordinator.shutdown_timeout = absl::Minutes(1);
  auto server = ferry::coord::CoordinatorServer::Create(std::move(options));
  if (!server.ok()) return nullptr;
  address = (*server)->address();
  return std::shared_ptr<ferry::coord::CoordinatorServer>(*std::move(server));
}
