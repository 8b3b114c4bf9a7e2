// SPDX-License-Identifier: Apache-2.0
// Groups a job's nodes into partitions by NVLink fabric or machine, and measures their regularity.
#ifndef FERRY_TOPOLOGY_PARTITION_H_
#define FERRY_TOPOLOGY_PARTITION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "topology/global_topology.h"
#include "topology/local_topology.h"

namespace ferry {

// Returns the partition of each node, by index; the rules are at BuildGlobalTopology.
//   nodes: ascending by id.
//   Errors: INVALID_ARGUMENT if some nodes name a partition and some do not.
absl::StatusOr<std::vector<int>> AssignPartitions(absl::Span<const LocalTopology> nodes);

// REQUIRES: one partition per node.
TopologyCounts CountTopology(absl::Span<const LocalTopology> nodes,
                             absl::Span<const int> partitions);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_PARTITION_H_
