// SPDX-License-Identifier: Apache-2.0
// Reports a refusal as a client of the job's coordinator, or as its host.
#include "cli/refusal.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "cli/hosted_coordinator.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "coord/client/agent.h"
#include "launch/master_address.h"

namespace ferry::cli {
namespace {

// How long to search for a coordinator that may have been started at the same time.
constexpr absl::Duration kLookTimeout = absl::Seconds(2);
// A coordinator answers at once whether the job can begin.
constexpr std::chrono::seconds kAnswerTimeout(2);
// How long a process that may not be node 0 runs the coordinator.
constexpr absl::Duration kUnsureTimeout = absl::Seconds(10);

absl::StatusOr<std::unique_ptr<coord::Agent>> Look(const std::string& coordinator) {
  coord::AgentOptions options;
  options.coordinator = coordinator;
  options.connect_timeout = kLookTimeout;
  return coord::Agent::Connect(std::move(options));
}

// Node 0 takes precedence if it is another process.
bool MayHost(const RefusedNode& node_identity) {
  return node_identity.is_derived && node_identity.may_be_first &&
         IsOwnAddress(HostOfPeer(node_identity.coordinator)) &&
         !Look(node_identity.coordinator).ok();
}

}  // namespace

RefusedNode AsRefused(const NodeIdentity& node_identity) {
  return {.coordinator = node_identity.coordinator,
          .is_derived = node_identity.is_derived,
          .node_id = node_identity.node_id,
          .num_nodes = node_identity.num_nodes,
          .may_be_first = node_identity.node_id == 0};
}

absl::Status ReportToOthers(const RefusedNode& node_identity, const absl::Status& why,
                            const RefusedJob& job) {
  const bool is_first = node_identity.is_derived && node_identity.node_id == 0;
  // A job of one process has no others; and a host needs their number in order to serve them.
  if (is_first && job.others == 0) return why;
  absl::Status said = PrintErrorNow(why);
  if (job.others > 0 && (is_first || MayHost(node_identity))) {
    const auto hosted = HostedCoordinator::At(node_identity.coordinator, job.nodes, Graphs::kNone);
    if (hosted.ok()) {
      (*hosted)->RefuseArrivingNodes(CannotJoinError(why), job.others,
                                     is_first ? job.timeout : kUnsureTimeout);
      return said;
    }
    // Another process, possibly a coordinator, listens there.
  }
  const Progress progress("telling the other nodes why this one cannot join");
  ReportCannotJoin(node_identity.coordinator, why);
  return said;
}

absl::Status WhyNotListening(const std::string& coordinator, const absl::Status& why) {
  const auto agent = Look(coordinator);
  if (!agent.ok()) return why;
  auto told = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> refusal = told->get_future();
  (*agent)->WatchJoiningAsync([told](absl::Status status) { told->set_value(std::move(status)); });
  if (refusal.wait_for(kAnswerTimeout) != std::future_status::ready) return why;
  absl::Status status = refusal.get();
  // Other errors do not come from a process that cannot join.
  return absl::IsFailedPrecondition(status) ? status : why;
}

}  // namespace ferry::cli
