// SPDX-License-Identifier: Apache-2.0
// Lists flags as text, and finds the first difference.
#include "bench/offer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/ranges.h"
#include "base/text.h"

namespace ferry::cli {
namespace {

// More processes per machine would measure its overload.
constexpr int kMostBenchNodes = 64;
constexpr size_t kNodeListBytes = 60;

std::string FlagText(const std::pair<std::string, std::string>& flag) {
  return absl::StrCat(flag.first, "=", flag.second);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> FlagsOfPlan(const BenchPlan& plan,
                                                             const std::string& transport,
                                                             const std::vector<int>& nodes) {
  const auto mode_name = [](std::string* out, BenchMode mode) {
    absl::StrAppend(out, BenchModeName(mode));
  };
  return {{"bench", plan.pattern},
          {"--node-list", FormatRanges(nodes)},
          {"--sizes", absl::StrJoin(plan.sizes, ",")},
          {"--mode", absl::StrJoin(plan.modes, ",", mode_name)},
          {"--transport", transport},
          {"--iters", absl::StrCat(plan.iterations)},
          {"--inflight", absl::StrCat(plan.inflight)},
          {"--keys", absl::StrCat(plan.keys)},
          {"--threads", absl::StrCat(plan.threads)},
          {"--batch", absl::StrCat(plan.batch)},
          {"--devices", absl::StrJoin(plan.devices, ",")},
          {"--dtype", plan.dtype},
          {"--poll", plan.is_polling ? "true" : "false"},
          {"--spin=0", plan.is_sleeping ? "true" : "false"},
          {"--tcp-connections", absl::StrCat(plan.tcp_streams)}};
}

std::string BenchOfferKey(int node) { return absl::StrCat(kBenchOfferPrefix, node); }

absl::Status CheckSameOffer(const BenchProposal& one, const BenchProposal& other) {
  const auto differ = [&one, &other](const std::string& here, const std::string& there) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", one.node, " has ", here, " and node ", other.node, " has ", there,
                     ": start ferry bench with the same flags on all its nodes"));
  };
  if (one.version != other.version) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", one.node, " is of ferry ", one.version, " and node ", other.node,
                     " of ferry ", other.version, ": run the same program on all of them"));
  }
  for (size_t i = 0; i < std::max(one.flags.size(), other.flags.size()); ++i) {
    if (i >= one.flags.size()) return differ("nothing of the kind", FlagText(other.flags[i]));
    if (i >= other.flags.size()) return differ(FlagText(one.flags[i]), "nothing of the kind");
    if (one.flags[i] == other.flags[i]) continue;
    return differ(FlagText(one.flags[i]), FlagText(other.flags[i]));
  }
  return absl::OkStatus();
}

int64_t FirstStepOfBench(uint64_t run) {
  // Step ids have 63 bits; this sets the highest.
  constexpr uint64_t kRuns = uint64_t{1} << 33;
  return static_cast<int64_t>((uint64_t{1} << 62) | ((run % kRuns) << 28));
}

absl::StatusOr<std::vector<int>> NodesOfBench(absl::string_view bench, absl::string_view node_list,
                                              int job_nodes, int own_node, int needed) {
  std::vector<int> nodes;
  if (node_list.empty()) {
    for (int node = 0; node < job_nodes; ++node) nodes.push_back(node);
  } else {
    absl::StatusOr<std::vector<int>> listed =
        ParseRanges(node_list, static_cast<size_t>(std::max(job_nodes, 1)));
    if (!listed.ok() || listed->empty() || listed->back() >= job_nodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("--node-list: ", Quoted(node_list),
                       " is no list of nodes such as 0-3,7 of a job of ", job_nodes));
    }
    nodes = *std::move(listed);
  }
  const int count = static_cast<int>(nodes.size());
  if (needed > 0 && count != needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ferry bench ", bench, " is of ", needed, " nodes, and not of the ", count,
        node_list.empty() ? " of the job" : " of --node-list", ": say which with --node-list=0,1"));
  }
  if (count < 2 || count > kMostBenchNodes) {
    return absl::InvalidArgumentError(absl::StrCat("ferry bench ", bench, " is of 2 to ",
                                                   kMostBenchNodes, " nodes, and not of ", count,
                                                   ": say which with --node-list=0-3"));
  }
  if (std::find(nodes.begin(), nodes.end(), own_node) == nodes.end()) {
    return absl::InvalidArgumentError(absl::StrCat("--node-list: node ", own_node,
                                                   " is not one of the nodes ",
                                                   FormatRanges(nodes, kNodeListBytes)));
  }
  return nodes;
}

}  // namespace ferry::cli
