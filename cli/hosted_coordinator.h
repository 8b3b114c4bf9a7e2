// SPDX-License-Identifier: Apache-2.0
// HostedCoordinator: a coordinator inside another verb, for jobs whose launcher names none.
#ifndef FERRY_CLI_HOSTED_COORDINATOR_H_
#define FERRY_CLI_HOSTED_COORDINATOR_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "cli/signals.h"
#include "coord/server/server.h"
#include "tensorflow/master/master_host.h"

namespace ferry::cli {

// Whether TensorFlow clients can run graphs on the job's workers.
enum class Graphs { kNone, kServed };

// Serves until destroyed. Thread-safe. Threads: as CoordinatorServer, plus MasterHost with graphs.
class HostedCoordinator final {
 public:
  // Listens on loopback, on a free port.
  //   heartbeat_timeout: the user's value; nullopt uses the default.
  static absl::StatusOr<std::unique_ptr<HostedCoordinator>> OnThisMachine(
      int nodes, Graphs graphs, std::optional<absl::Duration> heartbeat_timeout = std::nullopt);
  // Listens where the job's nodes expect it, see NodeIdentity::is_derived: on every address of the
  // machine, IPv4 and IPv6, unless `address` is reachable only from this machine; see
  // Listener::AddressFor.
  static absl::StatusOr<std::unique_ptr<HostedCoordinator>> At(
      const std::string& address, int nodes, Graphs graphs,
      std::optional<absl::Duration> heartbeat_timeout = std::nullopt);
  ~HostedCoordinator();

  HostedCoordinator(const HostedCoordinator&) = delete;
  HostedCoordinator& operator=(const HostedCoordinator&) = delete;

  // HOST:PORT it listens on.
  const std::string& address() const { return server_->address(); }

  // Replaces a job that cannot begin: joining nodes fail with `why`. Blocks until `others` nodes
  // have been rejected or `timeout` expires, and says so on stderr.
  void RefuseArrivingNodes(const absl::Status& why, int others, absl::Duration timeout);

  // Blocks until all nodes have left, or `timeout` expires; reports on stderr what it waits for. If
  // the job could not begin, it waits for all of `timeout`, so that late nodes get the reason.
  //   signals: any of them ends the wait; null if none are blocked.
  //   latecomers: replaces `timeout` if the job could not begin and all of its nodes were started
  //   by a launcher and use this coordinator: the wait ends when all have got the reason.
  void WaitUntilAllLeft(absl::Duration timeout, BlockedSignals* signals = nullptr,
                        std::optional<absl::Duration> latecomers = std::nullopt);

 private:
  HostedCoordinator() = default;
  static absl::StatusOr<std::unique_ptr<HostedCoordinator>> Listen(
      std::string listen, int nodes, Graphs graphs,
      std::optional<absl::Duration> heartbeat_timeout);
  std::string ConnectedNodes();
  // See Coordinator.
  size_t CountNotifiedOfJoiningFailure();

  // Constant after construction. May be null. Outlives the server, which uses its services.
  std::unique_ptr<master::MasterHost> master_;
  std::unique_ptr<coord::CoordinatorServer> server_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_HOSTED_COORDINATOR_H_
