// SPDX-License-Identifier: Apache-2.0
// Opens and closes the scope of a run.
#include "cli/run_store.h"

#include "absl/strings/str_cat.h"

#include "base/random_id.h"
#include "base/status_macros.h"
#include "launch/master_address.h"
#include "node/identity.h"

namespace ferry::cli {
namespace {

// A coordinator that is not there yet delays the start of a job on one machine by this.
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);
// Delays the end of a job whose coordinator hangs. It ends the hold by itself when the agent has
// gone.
constexpr absl::Duration kCloseTimeout = absl::Milliseconds(500);

std::string ScopeOf(const std::string& run_id) { return absl::StrCat("run/", run_id); }

}  // namespace

absl::StatusOr<std::unique_ptr<RunStore>> RunStore::Open(coord::Agent& agent,
                                                         const std::string& coordinator) {
  std::unique_ptr<RunStore> store(
      new RunStore(agent, absl::StrCat(kFerryRunIdPrefix, absl::Hex(RandomId()))));
  FERRY_ASSIGN_OR_RETURN(const int port, agent.OpenStore(ScopeOf(store->run_id_)));
  store->address_ = JoinHostPort(HostOfPeer(coordinator), port);
  return store;
}

absl::StatusOr<std::unique_ptr<RunStore>> RunStore::Open(const std::string& coordinator) {
  coord::AgentOptions options;
  options.coordinator = coordinator;
  options.connect_timeout = kConnectTimeout;
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<coord::Agent> agent,
                         coord::Agent::Connect(std::move(options)));
  FERRY_ASSIGN_OR_RETURN(std::unique_ptr<RunStore> store, Open(*agent, coordinator));
  store->own_agent_ = std::move(agent);
  return store;
}

RunStore::~RunStore() {
  // Not opened, if it has no address.
  if (address_.empty()) return;
  agent_.CloseStore(ScopeOf(run_id_), kCloseTimeout).IgnoreError();
}

}  // namespace ferry::cli
