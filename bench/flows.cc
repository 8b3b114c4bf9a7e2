// SPDX-License-Identifier: Apache-2.0
// Patterns as lists of flows.
#include "bench/flows.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"

namespace ferry::cli {

std::vector<int> BenchFlowSet::Members() const {
  std::set<int> members;
  for (const BenchFlow& flow : flows) members.insert({flow.src, flow.dst});
  return std::vector<int>(members.begin(), members.end());
}

size_t BenchFlowSet::MostReceived() const {
  std::map<int, size_t> received;
  size_t most = 0;
  for (const BenchFlow& flow : flows) most = std::max(most, ++received[flow.dst]);
  return most;
}

std::vector<BenchFlowSet> FlowSetsOf(absl::string_view pattern, int nodes) {
  std::vector<BenchFlowSet> sets;
  BenchFlowSet all;
  for (int a = 0; a < nodes; ++a) {
    for (int b = 0; b < nodes; ++b) {
      if (a == b) continue;
      const bool is_in = (pattern == "bidir" && a < 2 && b < 2) ||
                         (pattern == "ring" && b == (a + 1) % nodes) ||
                         (pattern == "fan-in" && b == 0) || (pattern == "fan-out" && a == 0);
      if (is_in) all.flows.push_back({a, b});
      if (pattern == "all-pairs") sets.push_back({{{a, b}}, absl::StrCat(a, "->", b)});
    }
  }
  if (!all.flows.empty()) sets.push_back(std::move(all));
  return sets;
}

BenchBandwidth BandwidthOf(absl::string_view pattern, int nodes) {
  // sendrecv_perf: each rank sends to the next and receives from the previous.
  if (pattern == "ring" || pattern == "bidir") return {1, 1};
  // gather_perf and scatter_perf: the root's own part counts for algbw but is not transferred.
  if (pattern == "fan-in" || pattern == "fan-out") {
    return {static_cast<double>(nodes), static_cast<double>(nodes - 1)};
  }
  return {};
}

}  // namespace ferry::cli
