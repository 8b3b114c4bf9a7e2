// SPDX-License-Identifier: Apache-2.0
// The runs of PyTorch's rendezvous, as text.
#include "cli/status_elastic.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/ranges.h"
#include "base/text.h"
#include "cli/table.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

constexpr size_t kMaxNames = 8;

struct Counts {
  int members = 0;
  int waiting = 0;
  absl::Duration longest;
  std::vector<std::string> waiting_names;
  std::vector<std::string> member_names;
};

Counts CountAgents(const coord::ElasticRunStatus& run) {
  Counts counts;
  for (const coord::ElasticAgentStatus& agent : run.agents) {
    const std::string host = Printable(agent.host);
    if (agent.rank >= 0) {
      ++counts.members;
      counts.member_names.push_back(absl::StrCat("rank ", agent.rank, " on ", host));
    }
    if (!agent.is_waiting) continue;
    ++counts.waiting;
    counts.longest = std::max(counts.longest, agent.age);
    counts.waiting_names.push_back(
        run.is_group ? absl::StrCat("rank ", agent.wanted_rank, " on ", host) : host);
  }
  return counts;
}

std::string Names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNames);
  std::string text = absl::StrJoin(names.begin(), names.begin() + static_cast<long>(shown), ", ");
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

// "rank 2 is missing", "1 node is missing", or "" if there are enough.
std::string Missing(const coord::ElasticRunStatus& run, int waiting) {
  if (!run.is_group) {
    const int missing = run.min_nodes - waiting;
    if (missing <= 0) return "";
    return absl::StrCat(Count(missing, "node"), missing == 1 ? " is missing" : " are missing");
  }
  std::vector<bool> is_there(static_cast<size_t>(std::max(run.max_nodes, 0)));
  for (const coord::ElasticAgentStatus& agent : run.agents) {
    const auto rank = static_cast<size_t>(std::max(agent.wanted_rank, 0));
    if (agent.is_waiting && rank < is_there.size()) is_there[rank] = true;
  }
  std::vector<int> ranks;
  for (size_t rank = 0; rank < is_there.size(); ++rank) {
    if (!is_there[rank]) ranks.push_back(static_cast<int>(rank));
  }
  if (ranks.empty()) return "";
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatRanges(ranks, 200),
                      ranks.size() == 1 ? " is missing" : " are missing");
}

std::string Line(const coord::ElasticRunStatus& run, const Counts& counts) {
  std::string text = absl::StrCat(
      "  ", Printable(run.run_id), ": ", Names(counts.waiting_names),
      counts.waiting == 1 ? " waits for round " : " wait for round ", run.round + 1,
      counts.waiting == 1 ? ", for " : ", the longest for ", ShortDuration(counts.longest));
  if (!run.is_group && counts.members > 0) {
    absl::StrAppend(&text, "; still in round ", run.round, ": ", Names(counts.member_names));
  } else if (const std::string missing = Missing(run, counts.waiting); !missing.empty()) {
    absl::StrAppend(&text, "; ", missing);
  }
  return text + "\n";
}

}  // namespace

std::string FormatElasticText(const std::vector<coord::ElasticRunStatus>& runs, size_t max_lines) {
  if (runs.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"PYTORCH RUN", "NODES", "ROUND", "MEMBERS", "WAITING", "STORE"}};
  std::vector<std::string> lines;
  size_t left_out = 0;
  for (const coord::ElasticRunStatus& run : runs) {
    const Counts counts = CountAgents(run);
    if (counts.waiting > 0) {
      if (lines.size() < max_lines) {
        lines.push_back(Line(run, counts));
      } else {
        ++left_out;
      }
    }
    if (rows.size() > max_lines) continue;
    const std::string sizes = run.min_nodes == run.max_nodes
                                  ? absl::StrCat(run.max_nodes)
                                  : absl::StrCat(run.min_nodes, " to ", run.max_nodes);
    rows.push_back({Printable(run.run_id), run.is_group ? absl::StrCat(sizes, " ranks") : sizes,
                    run.is_closed   ? "closed"
                    : run.round < 0 ? "-"
                                    : absl::StrCat(run.round),
                    absl::StrCat(counts.members), absl::StrCat(counts.waiting),
                    run.scope.empty() ? "-" : Printable(run.scope)});
  }
  std::string text = absl::StrCat("\n", FormatTable(rows, "  "));
  if (runs.size() > max_lines) {
    absl::StrAppend(&text, "  and ", runs.size() - max_lines, " more\n");
  }
  text += absl::StrJoin(lines, "");
  if (left_out > 0) absl::StrAppend(&text, "  and ", left_out, " more runs with nodes that wait\n");
  return text;
}

}  // namespace ferry::cli
