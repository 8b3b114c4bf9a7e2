// SPDX-License-Identifier: Apache-2.0
// ferry topo --coordinator: which way tensors take between the nodes of a job.
#ifndef FERRY_CLI_TOPO_PATHS_H_
#define FERRY_CLI_TOPO_PATHS_H_

#include <string>

#include "absl/status/statusor.h"

#include "coord/client/agent.h"
#include "topology/global_topology.h"

namespace ferry::cli {

// A line for each sort of path, with the pairs of nodes that take it and why they take no other:
// what senders say of peers with which they have a control channel, with what they have measured;
// of other pairs what follows from what both have published. And the same, always of the latter
// kind, for pairs of their GPUs. What only shows when it is tried, such as memory that cannot be
// mapped, is not known here: ferry doctor tries. Empty if no node moves tensors. Of larger jobs the
// first 16 nodes.
absl::StatusOr<std::string> FormatPaths(coord::Agent& agent, const GlobalTopology& topology);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TOPO_PATHS_H_
