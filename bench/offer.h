// SPDX-License-Identifier: Apache-2.0
// BenchProposal: what a node was asked to measure, and whether all nodes agree. Pure.
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
  // Node id in the job, and its incarnation.
  int node = 0;
  uint64_t incarnation = 0;
  // Version of the program.
  std::string version;
  // All flags that must be equal, as on the command line: {"--sizes", "8,64"}.
  std::vector<std::pair<std::string, std::string>> flags;

  friend bool operator==(const BenchProposal&, const BenchProposal&) = default;
};

//   nodes: number of participants.
std::vector<std::pair<std::string, std::string>> FlagsOfPlan(const BenchPlan& plan,
                                                             const std::string& transport,
                                                             const std::vector<int>& nodes);

// Key of a node's proposal in the store.
inline constexpr char kBenchOfferPrefix[] = "ferry-bench/offers/";
std::string BenchOfferKey(int node);

// A ferry.peer.v1.BenchProposal.
std::string EncodeBenchOffer(const BenchProposal& offer);
//   node: the node that published it at BenchOfferKey(node), for errors.
//   Errors: INVALID_ARGUMENT naming both; FAILED_PRECONDITION it is of another major version.
absl::StatusOr<BenchProposal> DecodeBenchOffer(absl::string_view bytes, int node);

// Errors: FAILED_PRECONDITION naming both nodes, and the first difference.
absl::Status CheckSameOffer(const BenchProposal& one, const BenchProposal& other);

// Returns the first of a run's 2^28 reserved step ids; chosen high, because programs usually count
// from 0.
//   run: the incarnation of its first node.
int64_t FirstStepOfBench(uint64_t run);

// Returns the participating nodes: those of --node-list, or all.
//   node_list: the flag's value, "0-3,7"; empty: all.
//   needed: the number of nodes the bench requires; 0: any number from 2 on.
//   Errors: INVALID_ARGUMENT naming the flag and the nodes.
absl::StatusOr<std::vector<int>> NodesOfBench(absl::string_view bench, absl::string_view node_list,
                                              int job_nodes, int own_node, int needed);

}  // namespace ferry::cli

#endif  // FERRY_BENCH_OFFER_H_
