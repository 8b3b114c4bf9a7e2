// SPDX-License-Identifier: Apache-2.0
// The flows of ferry bench's patterns, and nccl-tests' bandwidth factors for them. Pure.
#ifndef FERRY_BENCH_FLOWS_H_
#define FERRY_BENCH_FLOWS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ferry::cli {

// One direction: node `src` sends, node `dst` receives.
struct BenchFlow {
  int src = 0;
  int dst = 0;

  friend bool operator==(const BenchFlow&, const BenchFlow&) = default;
};

// Concurrent flows, reported as one row.
struct BenchFlowSet {
  std::vector<BenchFlow> flows;
  // "0->1" for a pattern that measures one pair at a time; empty: the whole pattern.
  std::string pair;

  // Returns the nodes that send or receive.
  std::vector<int> Members() const;
  // Returns the number of tensors received by the node that receives most.
  size_t MostReceived() const;
};

// Tensors counted per round by nccl-tests' formulas; 0: not defined for this pattern.
struct BenchBandwidth {
  double alg = 0;
  double bus = 0;
};

// "bidir", "ring", "fan-in", "fan-out" are one set; "all-pairs" is one set per pair.
//   nodes: at least 2.
std::vector<BenchFlowSet> FlowSetsOf(absl::string_view pattern, int nodes);
BenchBandwidth BandwidthOf(absl::string_view pattern, int nodes);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_FLOWS_H_
