// SPDX-License-Identifier: Apache-2.0
// ferry topo --coordinator: which way tensors take between the nodes of a job.
#ifndef FERRY_CLI_TOPO_PATHS_H_
#define FERRY_CLI_TOPO_PATHS_H_

#include <string>

#include "absl/status/statusor.h"

#include "coord/agent.h"
#include "topology/global_topology.h"

namespace ferry::cli {

// A line for each sort of path, with the pairs of nodes that take it and why they take no other,
// and the same for pairs of their GPUs: what they have published, and costs as this machine would
// have them. What only shows when it is tried, such as memory that cannot be mapped, is not known
// here: ferry doctor tries. Empty if no node moves tensors. Of larger jobs the first 16 nodes.
absl::StatusOr<std::string> FormatPaths(coord::Agent& agent, const GlobalTopology& topology);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TOPO_PATHS_H_
