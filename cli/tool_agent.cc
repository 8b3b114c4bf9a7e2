// SPDX-License-Identifier: Apache-2.0
// Connects without a node id.
#include "cli/tool_agent.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cli/progress.h"
#include "cli/verb.h"

namespace ferry::cli {
absl::StatusOr<std::unique_ptr<coord::Agent>> ConnectTool(
    const std::string& coordinator, std::function<void(absl::Status)> on_lost) {
  if (coordinator.empty()) {
    return absl::InvalidArgumentError(
        "which coordinator? Say --coordinator=HOST:PORT or set FERRY_COORDINATOR");
  }
  FERRY_RETURN_IF_ERROR(CheckAddress("--coordinator", coordinator));
  coord::AgentOptions options;
  options.coordinator = coordinator;
  options.connect_timeout = kToolTimeout;
  options.reconnect_timeout = kToolTimeout;
  options.on_error = std::move(on_lost);
  const Progress progress(absl::StrCat("looking for the coordinator at ", coordinator));
  return coord::Agent::Connect(std::move(options));
}

}  // namespace ferry::cli
