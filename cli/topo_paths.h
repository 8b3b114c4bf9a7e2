// SPDX-License-Identifier: Apache-2.0
// ferry topo --coordinator: which way tensors take between the nodes of a job.
#ifndef FERRY_CLI_TOPO_PATHS_H_
#define FERRY_CLI_TOPO_PATHS_H_

#include <string>

#include "absl/status/statusor.h"

#include "coord/agent.h"

namespace ferry::cli {

// A line for each sort of path, with the pairs of nodes that take it and why they take no other:
// what they have published, and costs as this machine would have them. Empty if no node moves
// tensors. Of larger jobs the first 16 nodes.
absl::StatusOr<std::string> FormatPaths(coord::Agent& agent);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TOPO_PATHS_H_
