// SPDX-License-Identifier: Apache-2.0
// The query, two tables, and a JSON object.
#include "cli/status_transfers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/bounded_text.h"
#include "base/ranges.h"
#include "base/text.h"
#include "cli/node_answers.h"
#include "cli/table.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

using Json = nlohmann::ordered_json;

// Limit on the pairs listed per reason.
constexpr size_t kMaxPairs = 6;

std::string Bytes(size_t bytes) { return ShortBytes(static_cast<double>(bytes)); }

std::string NameOf(const PathExplanation& choice) {
  for (const PathCandidate& each : choice.candidates) {
    if (each.transport == choice.transport) return each.name;
  }
  return "none";
}

// Formats "1, 2 by shm; 3 by tcp".
std::string PathsOf(const TransferReport& report, int self) {
  std::map<std::string, std::vector<int>> peers;
  for (const PathReport& path : report.paths) {
    if (path.peer == self || !path.is_in_arena) continue;
    peers[path.choice.ok() ? NameOf(*path.choice) : "none"].push_back(path.peer);
  }
  std::vector<std::string> parts;
  for (const auto& [name, nodes] : peers) {
    parts.push_back(absl::StrCat(FormatRanges(nodes, 40), " by ", name));
  }
  const int64_t shown = std::min(report.peers, static_cast<int64_t>(kMaxReportPeers));
  if (report.peers > shown) parts.push_back(absl::StrCat(report.peers - shown, " more"));
  return parts.empty() ? "-" : absl::StrJoin(parts, "; ");
}

std::string RefusedText(const TransferReport& report) {
  const int64_t count = report.refused_connections + report.refused_calls;
  return report.last_refusal.empty()
             ? absl::StrCat(count)
             : absl::StrCat(count, ", last: ", Printable(report.last_refusal));
}

Json Measure(double value, CostBasis basis, absl::Duration age) {
  static constexpr const char* kNames[] = {"assumed", "start", "measured"};
  return {{"value", value},
          {"basis", kNames[static_cast<int>(basis)]},
          {"age_s", basis == CostBasis::kMeasured ? Json(absl::ToDoubleSeconds(age)) : Json()}};
}

Json PathJson(const PathReport& path) {
  Json object = {{"peer", path.peer}, {"channel", path.channel}, {"in_arena", path.is_in_arena}};
  if (!path.choice.ok()) {
    object["transport"] = nullptr;
    object["error"] = std::string(path.choice.status().message());
    return object;
  }
  object["transport"] = NameOf(*path.choice);
  Json costs = Json::object();
  Json refused = Json::object();
  for (const PathCandidate& each : path.choice->candidates) {
    if (!each.cost.ok()) {
      refused[each.name] = std::string(each.cost.status().message());
      continue;
    }
    const PathCost& cost = *each.cost;
    costs[each.name] = {{"latency_s", Measure(absl::ToDoubleSeconds(cost.latency),
                                              cost.latency_basis, cost.latency_age)},
                        // Zero-copy paths have no bandwidth.
                        {"bytes_per_s", cost.bytes_per_second >= kNoCopy
                                            ? Json()
                                            : Measure(cost.bytes_per_second, cost.bandwidth_basis,
                                                      cost.bandwidth_age)}};
  }
  object["costs"] = std::move(costs);
  object["refused"] = std::move(refused);
  return object;
}

}  // namespace

TransferAnswers AskTransferReports(coord::Agent& agent, absl::Duration timeout, size_t max_nodes) {
  TransferAnswers result;
  absl::StatusOr<NodeAnswers> answers =
      AskNodes(agent, kReportRequestKey, kReportPrefix, timeout, max_nodes);
  if (!answers.ok()) {
    // The rest of the status is still useful.
    result.error = std::string(answers.status().message());
    return result;
  }
  result.silent = std::move(answers->silent);
  result.is_too_large = answers->is_too_large;
  for (const auto& [node, text] : answers->texts) {
    // The store's values are untrusted: any client can write them.
    absl::StatusOr<TransferReport> report = DecodeTransferReport(text, node);
    if (report.ok()) {
      result.reports.emplace(node, *std::move(report));
    } else {
      if (result.why_unreadable.empty()) {
        result.why_unreadable = std::string(report.status().message());
      }
      result.silent.push_back(node);
    }
  }
  std::sort(result.silent.begin(), result.silent.end());
  return result;
}

std::string FormatTransfersText(const TransferAnswers& answers, size_t max_lines) {
  std::string text;
  if (!answers.reports.empty()) {
    std::vector<std::vector<std::string>> rows = {
        {"TENSORS OF", "ARENA", "PAGES", "PATHS OF 1 MiB TO", "REFUSED"}};
    std::map<std::pair<std::string, std::string>, std::vector<std::string>> reasons;
    for (const auto& [node, report] : answers.reports) {
      if (rows.size() <= max_lines) {
        rows.push_back(
            {absl::StrCat(node),
             absl::StrCat(Bytes(report.arena_used_bytes), " of ", Bytes(report.arena_budget_bytes)),
             Printable(report.pages), Printable(PathsOf(report, node)), RefusedText(report)});
      }
      for (const PathReport& path : report.paths) {
        if (path.peer == node || !path.is_in_arena) continue;
        const std::string pair = absl::StrCat(node, ">", path.peer);
        if (!path.choice.ok()) {
          reasons[{"none", std::string(path.choice.status().message())}].push_back(pair);
          continue;
        }
        for (const PathCandidate& each : path.choice->candidates) {
          if (each.cost.ok()) continue;
          reasons[{absl::StrCat("not ", each.name), std::string(each.cost.status().message())}]
              .push_back(pair);
        }
      }
    }
    const size_t hidden = answers.reports.size() - (rows.size() - 1);
    absl::StrAppend(&text, "\n", FormatTable(rows, "  "));
    if (hidden > 0) absl::StrAppend(&text, "  ... and ", hidden, " more nodes\n");
    if (!reasons.empty()) {
      std::vector<std::vector<std::string>> why = {{"PAIRS", "PATH", "BECAUSE"}};
      for (const auto& [reason, pairs] : reasons) {
        if (why.size() > max_lines) break;
        why.push_back({BoundedList(pairs, kMaxPairs, " "), Printable(reason.first),
                       Printable(reason.second)});
      }
      absl::StrAppend(&text, "\n", FormatTable(why, "  "));
    }
  }
  if (!answers.silent.empty()) {
    absl::StrAppend(&text, "\n  no word of its tensors from node",
                    answers.silent.size() == 1 ? " " : "s ", FormatRanges(answers.silent, 200),
                    "\n");
  }
  if (!answers.why_unreadable.empty()) {
    absl::StrAppend(&text, "  ", Printable(answers.why_unreadable), "\n");
  }
  if (answers.is_too_large) {
    absl::StrAppend(&text, "\n  of tensors only with --all: there are over ", kMaxAskedNodes,
                    " nodes\n");
  }
  if (!answers.error.empty()) {
    absl::StrAppend(&text, "\n  of tensors nothing is known: ", Printable(answers.error), "\n");
  }
  return text;
}

Json TransfersJson(const TransferAnswers& answers) {
  Json nodes = Json::array();
  for (const auto& [node, report] : answers.reports) {
    Json paths = Json::array();
    for (const PathReport& path : report.paths) paths.push_back(PathJson(path));
    nodes.push_back(
        {{"node_id", node},
         {"arena",
          {{"pages", report.pages},
           {"used_bytes", report.arena_used_bytes},
           {"mapped_bytes", report.arena_mapped_bytes},
           {"budget_bytes", report.arena_budget_bytes}}},
         {"refused_connections", report.refused_connections},
         {"refused_calls", report.refused_calls},
         {"last_refusal", report.last_refusal.empty() ? Json() : Json(report.last_refusal)},
         {"peers", report.peers},
         {"paths", std::move(paths)}});
  }
  return {{"nodes", std::move(nodes)},
          {"silent", answers.silent},
          {"is_too_large", answers.is_too_large},
          {"error", answers.error.empty() ? Json() : Json(answers.error)}};
}

}  // namespace ferry::cli
