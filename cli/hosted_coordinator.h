// SPDX-License-Identifier: Apache-2.0
// HostedCoordinator: a coordinator inside a verb, for jobs whose launcher names none.
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

// Whether TensorFlow's clients can run graphs on the job's workers.
enum class Graphs { kNone, kServed };

// Serves while it lives. Thread-safe. Threads: as CoordinatorServer, and MasterHost with graphs.
class HostedCoordinator final {
 public:
  // For this machine only, on a free port.
  //   heartbeat_timeout: the value that the user has set; nullopt uses the default.
  static absl::StatusOr<std::unique_ptr<HostedCoordinator>> OnThisMachine(
      int nodes, Graphs graphs, std::optional<absl::Duration> heartbeat_timeout = std::nullopt);
  // Where the nodes of the job look for it, see NodeIdentity::is_derived. Listens on every address
  // of the machine, of both families, unless `address` is one that only this machine can reach: see
  // TcpListener::AddressFor.
  static absl::StatusOr<std::unique_ptr<HostedCoordinator>> At(
      const std::string& address, int nodes, Graphs graphs,
      std::optional<absl::Duration> heartbeat_timeout = std::nullopt);
  ~HostedCoordinator();

  HostedCoordinator(const HostedCoordinator&) = delete;
  HostedCoordinator& operator=(const HostedCoordinator&) = delete;

  // HOST:PORT as it listens.
  const std::string& address() const { return server_->address(); }

  // In the place of a job that cannot begin: those that come fail with `why`. Waits until so many
  // `others` have come, but no longer than `timeout`, and says so on stderr.
  void RefuseArrivingNodes(const absl::Status& why, int others, absl::Duration timeout);

  // Waits until no node is left, for at most `timeout`, and for all of it where the job could not
  // begin, so that nodes that come late hear why; says on stderr what it waits for.
  //   signals: one of them ends the wait; null where nothing blocks them.
  //   latecomers: replaces `timeout` where the job could not begin, if all of its nodes were
  //   started by a launcher and look for this coordinator: the wait ends when all have heard.
  void WaitUntilAllLeft(absl::Duration timeout, BlockedSignals* signals = nullptr,
                        std::optional<absl::Duration> latecomers = std::nullopt);

 private:
  HostedCoordinator() = default;
  static absl::StatusOr<std::unique_ptr<HostedCoordinator>> Listen(
      std::string listen, int nodes, Graphs graphs,
      std::optional<absl::Duration> heartbeat_timeout);
  std::string ConnectedNodes();
  // See Coordinator.
  size_t ToldOfJoiningFailure();

  // Constant after construction. Null: there is none. Outlives the server, whose services it has.
  std::unique_ptr<master::MasterHost> master_;
  std::unique_ptr<coord::CoordinatorServer> server_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_HOSTED_COORDINATOR_H_
