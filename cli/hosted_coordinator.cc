// SPDX-License-Identifier: Apache-2.0
// Starts a coordinator for the other nodes, and stops it after they have left.
#include "cli/hosted_coordinator.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/ranges.h"
#include "base/status_macros.h"
#include "cli/end_job_auth.h"
#include "cli/hosted_master.h"
#include "cli/progress.h"
#include "coord/core/coordinator.h"
#include "net/listener.h"

namespace ferry::cli {
namespace {

// Polling interval: there is no notification for this, and a short delay at the end of a job is
// fine.
constexpr absl::Duration kLook = absl::Milliseconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<HostedCoordinator>> HostedCoordinator::OnThisMachine(
    int nodes, Graphs graphs, std::optional<absl::Duration> heartbeat_timeout) {
  return Listen("127.0.0.1:0", nodes, graphs, heartbeat_timeout);
}

absl::StatusOr<std::unique_ptr<HostedCoordinator>> HostedCoordinator::At(
    const std::string& address, int nodes, Graphs graphs,
    std::optional<absl::Duration> heartbeat_timeout) {
  return Listen(Listener::AddressFor(address), nodes, graphs, heartbeat_timeout);
}

absl::StatusOr<std::unique_ptr<HostedCoordinator>> HostedCoordinator::Listen(
    std::string listen, int nodes, Graphs graphs, std::optional<absl::Duration> heartbeat_timeout) {
  std::unique_ptr<HostedCoordinator> hosted(new HostedCoordinator());
  coord::ServerOptions options;
  options.listen = std::move(listen);
  options.stop_grace = kCoordinatorGrace;
  options.coordinator.jobs = {{"jax_worker", nodes}};
  if (heartbeat_timeout.has_value()) {
    options.coordinator.heartbeat_timeout = *heartbeat_timeout;
    options.coordinator.heartbeat_timeout_is_limit = true;
  }
  RequireEndJobAuth(options);
  if (graphs == Graphs::kServed) hosted->master_ = AddMaster(master::MasterOptions(), options);
  FERRY_ASSIGN_OR_RETURN(hosted->server_, coord::CoordinatorServer::Create(std::move(options)));
  return hosted;
}

HostedCoordinator::~HostedCoordinator() {
  if (master_ != nullptr) master_->Stop(kMasterGrace);
}

std::string HostedCoordinator::ConnectedNodes() {
  return server_->executor().Run([](coord::Coordinator& coordinator) {
    std::vector<int> connected;
    for (const coord::TaskInfo& task : coordinator.membership().Snapshot()) {
      if (task.state == coord::TaskState::kConnected) connected.push_back(task.task.value());
    }
    return FormatRanges(connected);
  });
}

size_t HostedCoordinator::CountNotifiedOfJoiningFailure() {
  return server_->executor().Run(
      [](coord::Coordinator& coordinator) { return coordinator.notified_of_joining_failure(); });
}

void HostedCoordinator::RefuseArrivingNodes(const absl::Status& why, int others,
                                            absl::Duration timeout) {
  const absl::Time deadline = SteadyClock().Now() + timeout;
  const auto wanted = static_cast<size_t>(others);
  server_->executor().Run(
      [&why](coord::Coordinator& coordinator) { coordinator.RefuseJoining(why); });
  const Progress progress([this, wanted] {
    return absl::StrCat("staying a while at ", address(), ", to tell the other nodes that come (",
                        CountNotifiedOfJoiningFailure(), " of ", wanted, ")");
  });
  while (CountNotifiedOfJoiningFailure() < wanted && SteadyClock().Now() < deadline)
    absl::SleepFor(kLook);
}

void HostedCoordinator::WaitUntilAllLeft(absl::Duration timeout, BlockedSignals* signals,
                                         std::optional<absl::Duration> latecomers) {
  // Nodes that arrive late at a job that cannot begin fail with the reason, instead of searching
  // for a coordinator that has ended.
  const bool cannot_begin = server_->executor().Run([&latecomers](coord::Coordinator& coordinator) {
    const absl::Status why = coordinator.joining_error();
    // For all later arrivals: no other job begins on this coordinator.
    if (!why.ok() && latecomers.has_value()) coordinator.RefuseJoining(why);
    return !why.ok();
  });
  const bool knows_all = cannot_begin && latecomers.has_value();
  const auto nodes = static_cast<size_t>(server_->executor().Run(
      [](coord::Coordinator& coordinator) { return coordinator.jobs().size(); }));
  const absl::Time deadline = SteadyClock().Now() + (knows_all ? *latecomers : timeout);
  const auto is_over = [this, cannot_begin, knows_all, nodes] {
    return cannot_begin ? knows_all && CountNotifiedOfJoiningFailure() >= nodes
                        : ConnectedNodes().empty();
  };
  const Progress progress([this, cannot_begin] {
    return cannot_begin
               ? std::string("staying a while, to tell nodes that come late of the job's error")
               : absl::StrCat("waiting for nodes ", ConnectedNodes(), " to leave");
  });
  while (!is_over() && SteadyClock().Now() < deadline) {
    if (signals == nullptr) {
      absl::SleepFor(kLook);
    } else if (signals->WaitFor(kLook)) {
      return;
    }
  }
}

}  // namespace ferry::cli
