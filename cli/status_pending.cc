// SPDX-License-Identifier: Apache-2.0
// The query through the store, and the table of its answers.
#include "cli/status_pending.h"

#include <algorithm>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/node_answers.h"
#include "cli/table.h"
#include "launch/printable.h"
#include "rendezvous/key.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kPendingTimeout = absl::Seconds(2);

// Returns "grad/3", or the whole key if it was not made by a node.
std::string NameIn(const std::string& key) {
  const absl::StatusOr<RendezvousKey> parsed = RendezvousKey::Parse(key);
  return Quoted(parsed.ok() ? parsed->edge() : absl::string_view(key), 60);
}

}  // namespace

absl::StatusOr<PendingAnswers> AskPending(coord::Agent& agent) {
  FERRY_ASSIGN_OR_RETURN(const NodeAnswers answers,
                         AskNodes(agent, kPendingRequestKey, kPendingPrefix, kPendingTimeout));
  PendingAnswers result;
  result.silent = answers.silent;
  for (const auto& [node, text] : answers.texts) {
    FERRY_ASSIGN_OR_RETURN(result.reports[node], DecodePending(text, node));
  }
  return result;
}

std::string FormatPendingText(const PendingAnswers& answers, size_t max_lines) {
  struct Line {
    int node;
    const PendingRow* row;
  };
  std::vector<Line> lines;
  int64_t total = 0;
  for (const auto& [node, report] : answers.reports) {
    total += report.total;
    for (const PendingRow& row : report.rows) lines.push_back({node, &row});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.row->age > b.row->age; });
  std::string text = absl::StrCat(total == 0 ? "nothing" : Count(total, "operation"), " of ",
                                  Count(static_cast<long long>(answers.reports.size()), "node"),
                                  total == 1   ? " has"
                                  : total == 0 ? " has"
                                               : " have",
                                  " waited for over ", ShortDuration(kPendingAge), "\n");
  if (!answers.silent.empty()) {
    absl::StrAppend(&text, "no answer within ", ShortDuration(kPendingTimeout), " of node",
                    answers.silent.size() == 1 ? " " : "s ", FormatRanges(answers.silent, 200),
                    "\n");
  }
  if (lines.empty()) return text;
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "STEP", "SIDE", "PEER", "NAME", "AGE", "BYTES", "PHASE"}};
  for (const auto& [node, row] : lines) {
    if (rows.size() > max_lines) break;
    rows.push_back({absl::StrCat(node), absl::StrCat(row->step_id), Printable(row->side),
                    absl::StrCat(row->peer), NameIn(row->key), ShortDuration(row->age),
                    row->side == "send" ? ShortBytes(static_cast<double>(row->bytes)) : "-",
                    Printable(row->phase)});
  }
  absl::StrAppend(&text, "\n", FormatTable(rows, "  "));
  const int64_t hidden = total - static_cast<int64_t>(rows.size()) + 1;
  if (hidden > 0) absl::StrAppend(&text, "  ... and ", hidden, " younger ones\n");
  return text;
}

std::string FormatPendingJson(const PendingAnswers& answers) {
  using Json = nlohmann::ordered_json;
  Json pending = Json::array();
  int64_t total = 0;
  for (const auto& [node, report] : answers.reports) {
    total += report.total;
    for (const PendingRow& row : report.rows) {
      pending.push_back({{"node_id", node},
                         {"step_id", row.step_id},
                         {"side", row.side},
                         {"peer", row.peer},
                         {"key", row.key},
                         {"age_s", absl::ToDoubleSeconds(row.age)},
                         {"bytes", row.bytes},
                         {"phase", row.phase}});
    }
  }
  const Json document = {{"total", total}, {"pending", pending}, {"silent", answers.silent}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ferry::cli
