// SPDX-License-Identifier: Apache-2.0
// Collecting local topologies, idempotently.
#include "topology/enumeration.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "base/ranges.h"
#include "base/status_macros.h"

namespace ferry {

absl::Status Enumeration::Add(const LocalTopology& topology) {
  FERRY_RETURN_IF_ERROR(Validate(topology));
  if (topology.node_id >= node_count_) {
    return absl::FailedPreconditionError(
        absl::StrCat("topology of node ", topology.node_id, " (", topology.host_name,
                     "): the job has only the nodes 0 to ", node_count_ - 1));
  }
  const auto [known, is_new] = nodes_.try_emplace(topology.node_id, topology);
  if (is_new) return absl::OkStatus();
  const std::string difference = DescribeDifference(known->second, topology);
  if (difference.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "node ", topology.node_id, " reports a different local topology than before: ", difference));
}

std::vector<int> Enumeration::Missing() const {
  std::vector<int> missing;
  for (int node = 0; node < node_count_; ++node) {
    if (nodes_.count(node) == 0) missing.push_back(node);
  }
  return missing;
}

absl::StatusOr<GlobalTopology> Enumeration::Build() const {
  if (!complete()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no local topology yet from node ", FormatRanges(Missing()), " of ", node_count_));
  }
  std::vector<LocalTopology> nodes;
  nodes.reserve(nodes_.size());
  for (const auto& [node_id, node] : nodes_) nodes.push_back(node);
  return BuildGlobalTopology(nodes);
}

}  // namespace ferry
