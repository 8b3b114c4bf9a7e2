// SPDX-License-Identifier: Apache-2.0
// BenchProposal: what a node of a job was told to measure, and whether others were told the same.
// Pure.
#ifndef FERRY_BENCH_OFFER_H_
#define FERRY_BENCH_OFFER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "bench/plan.h"

namespace ferry::cli {

struct BenchProposal {
  // Of the job, and which of its lives.
  int node = 0;
  uint64_t incarnation = 0;
  // Of the program.
  std::string version;
  // All flags that have to be alike, in the words of the command line: {"--sizes", "8,64"}.
  std::vector<std::pair<std::string, std::string>> flags;

  friend bool operator==(const BenchProposal&, const BenchProposal&) = default;
};

//   nodes: that take part.
std::vector<std::pair<std::string, std::string>> FlagsOfPlan(const BenchPlan& plan,
                                                             const std::string& transport,
                                                             const std::vector<int>& nodes);

std::string EncodeBenchOffer(const BenchProposal& offer);
//   Errors: INVALID_ARGUMENT it is none.
absl::StatusOr<BenchProposal> DecodeBenchOffer(absl::string_view text);

// Errors: FAILED_PRECONDITION naming both nodes, and the first thing in which they differ.
absl::Status CheckSameOffer(const BenchProposal& one, const BenchProposal& other);

// Of the steps of one run, which has 2^28 of its own; programs mostly count from 0 on.
//   run: the incarnation of its first node.
int64_t FirstStepOfBench(uint64_t run);

// Which nodes take part: those of --among, or all.
//   among: as the flag has it, "0-3,7"; empty: all.
//   needed: how many the bench is of; 0: any number from 2 on.
//   Errors: INVALID_ARGUMENT naming the flag and the nodes.
absl::StatusOr<std::vector<int>> NodesOfBench(absl::string_view bench, absl::string_view among,
                                              int job_nodes, int own_node, int needed);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_OFFER_H_
