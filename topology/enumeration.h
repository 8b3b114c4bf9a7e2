// SPDX-License-Identifier: Apache-2.0
// Enumeration: collects the local topologies of a job until the global one can be built.
#ifndef FERRY_TOPOLOGY_ENUMERATION_H_
#define FERRY_TOPOLOGY_ENUMERATION_H_

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "topology/global_topology.h"
#include "topology/local_topology.h"

namespace ferry {

// Used by the coordinator: Add for each node's report, then Build once complete() is true. A value
// without locks: thread-compatible. Owned by the job's server.
class Enumeration final {
 public:
  // For the nodes 0 to node_count - 1.
  explicit Enumeration(int node_count) : node_count_(node_count) {}

  // Adds one node's report. Repeating an identical report has no effect.
  //   Errors: INVALID_ARGUMENT if the report is invalid by itself; FAILED_PRECONDITION for a node
  //   id that is not of the job; INTERNAL, as JAX's clients expect, naming the difference, if the
  //   node's previous report was different.
  absl::Status Add(const LocalTopology& topology);

  // Removes a node that left, so that its successor may report other devices.
  void Remove(int32_t node_id) { nodes_.erase(node_id); }

  bool complete() const { return static_cast<int>(nodes_.size()) == node_count_; }

  // The ids of the nodes that have not reported, ascending.
  std::vector<int> Missing() const;

  // Errors: FAILED_PRECONDITION naming the missing nodes; else as BuildGlobalTopology.
  absl::StatusOr<GlobalTopology> Build() const;

 private:
  const int node_count_;
  std::map<int32_t, LocalTopology> nodes_;
};

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_ENUMERATION_H_
