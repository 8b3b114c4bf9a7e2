// SPDX-License-Identifier: Apache-2.0
// The connection of a verb that looks at a job without being part of it.
#ifndef FERRY_CLI_TOOL_AGENT_H_
#define FERRY_CLI_TOOL_AGENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coord/client/agent.h"

namespace ferry::cli {

// How long a verb looks for its coordinator, or goes without it.
inline constexpr absl::Duration kToolTimeout = absl::Seconds(10);

// Looks for the coordinator for ten seconds, and says so when it takes more than one.
//   on_lost: as AgentOptions::on_error; the coordinator may be out of reach for ten seconds.
//   Errors: INVALID_ARGUMENT when the address is empty or is none; DEADLINE_EXCEEDED when nobody
//   answers there.
absl::StatusOr<std::unique_ptr<coord::Agent>> ConnectTool(
    const std::string& coordinator, std::function<void(absl::Status)> on_lost = nullptr);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TOOL_AGENT_H_
