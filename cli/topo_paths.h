// SPDX-License-Identifier: Apache-2.0
// ferry topo --coordinator: the paths of tensors between a job's nodes.
#ifndef FERRY_CLI_TOPO_PATHS_H_
#define FERRY_CLI_TOPO_PATHS_H_

#include <string>

#include "absl/status/statusor.h"

#include "coord/client/agent.h"
#include "topology/global_topology.h"

namespace ferry::cli {

// Formats a line per kind of path, with the pairs of nodes that use it and why they use no other.
// For peers with a control channel this is the sender's report, with measured costs; for other
// pairs it is derived from what both have published. The same for pairs of their GPUs, always
// derived. Failures that only show on use, such as memory that cannot be mapped, are not known
// here: ferry doctor tests for them. Empty if no node transfers tensors. In larger jobs only the
// first 16 nodes.
absl::StatusOr<std::string> FormatPaths(coord::Agent& agent, const GlobalTopology& topology);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TOPO_PATHS_H_
