// SPDX-License-Identifier: Apache-2.0
// The connection of a verb that inspects a job without being part of it.
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

// How long a verb searches for its coordinator, or tolerates its loss.
inline constexpr absl::Duration kToolTimeout = absl::Seconds(10);

// Connects to the coordinator within ten seconds, and prints progress if it takes more than one.
//   on_lost: as AgentOptions::on_error; the coordinator may be unreachable for ten seconds before.
//   Errors: INVALID_ARGUMENT if the address is empty or malformed; DEADLINE_EXCEEDED if nothing
//   answers there.
absl::StatusOr<std::unique_ptr<coord::Agent>> ConnectTool(
    const std::string& coordinator, std::function<void(absl::Status)> on_lost = nullptr);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TOOL_AGENT_H_
