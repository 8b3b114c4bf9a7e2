// SPDX-License-Identifier: Apache-2.0
// Who sends to whom in a pattern of ferry bench, and what nccl-tests would count of it. Pure.
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

// Flows that go at the same time, and are one row of a report.
struct BenchFlowSet {
  std::vector<BenchFlow> flows;
  // "0->1" of a pattern that takes one pair at a time; empty: all of the pattern.
  std::string pair;

  // That send or receive.
  std::vector<int> Members() const;
  // Of the node that receives most.
  size_t MostReceived() const;
};

// What nccl-tests' formulas count for one round, in tensors; 0: it has none for this pattern.
struct BenchBandwidth {
  double alg = 0;
  double bus = 0;
};

// "bidir", "ring", "fan-in", "fan-out" are one set; "all-pairs" is one for each pair.
//   nodes: at least 2.
std::vector<BenchFlowSet> FlowSetsOf(absl::string_view pattern, int nodes);
BenchBandwidth BandwidthOf(absl::string_view pattern, int nodes);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_FLOWS_H_
