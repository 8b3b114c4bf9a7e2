// SPDX-License-Identifier: Apache-2.0
// Asking through the store, and the table of the answers.
#include "cli/status_pending.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

#include "base/clock.h"
#include "base/ranges.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/table.h"
#include "rendezvous/key.h"
#include "runtime/endpoint_record.h"
#include "runtime/printable.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kAnswerPatience = absl::Seconds(2);

// Nodes that are connected and have told where their tensors can be had.
absl::StatusOr<std::set<int>> NodesToAsk(coord::Agent& agent) {
  FERRY_ASSIGN_OR_RETURN(const coord::JobStatus status, agent.Status());
  std::string prefix = EndpointKey(0);
  prefix.pop_back();
  FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> entries,
                         agent.List(prefix, /*keys_only=*/true));
  std::set<int> connected;
  for (const coord::TaskStatus& task : status.tasks) {
    if (task.state == coord::TaskState::kConnected) connected.insert(task.node_id);
  }
  std::set<int> nodes;
  for (const coord::KeyValue& entry : entries) {
    int node = 0;
    const absl::string_view digits = absl::StripPrefix(entry.key, prefix);
    if (absl::SimpleAtoi(digits, &node) && connected.contains(node)) nodes.insert(node);
  }
  return nodes;
}

// What has come, on the agent's thread and on ours.
struct Answers {
  absl::Mutex mu;
  int64_t asked ABSL_GUARDED_BY(mu) = INT64_MAX;
  // Of each node the latest, with its revision.
  std::map<int, std::pair<int64_t, std::string>> latest ABSL_GUARDED_BY(mu);

  size_t count() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    size_t count = 0;
    for (const auto& [node, answer] : latest) count += answer.first > asked ? 1 : 0;
    return count;
  }
};

// "grad/3", and the whole key if it is none of a node's making.
std::string NameIn(const std::string& key) {
  const absl::StatusOr<RendezvousKey> parsed = RendezvousKey::Parse(key);
  return Quoted(parsed.ok() ? parsed->edge() : absl::string_view(key), 60);
}

}  // namespace

absl::StatusOr<PendingAnswers> AskPending(coord::Agent& agent) {
  FERRY_ASSIGN_OR_RETURN(const std::set<int> nodes, NodesToAsk(agent));
  PendingAnswers result;
  if (nodes.empty()) return result;
  // Shared, because the watch may be in the middle of a call when it ends.
  const auto shared = std::make_shared<Answers>();
  Answers& answers = *shared;
  FERRY_ASSIGN_OR_RETURN(
      const auto watch, agent.Watch(kPendingPrefix, [shared](const coord::KeyChange& change) {
        int node = 0;
        const absl::string_view digits = absl::StripPrefix(change.entry.key, kPendingPrefix);
        if (change.deleted || !absl::SimpleAtoi(digits, &node)) return;
        absl::MutexLock lock(&shared->mu);
        shared->latest[node] = {change.entry.revision, change.entry.value};
      }));
  // The nonce is only there to be another one than the last.
  FERRY_RETURN_IF_ERROR(agent.Set(kPendingRequestKey, absl::StrCat(absl::ToUnixNanos(absl::Now())),
                                  /*overwrite=*/true));
  FERRY_ASSIGN_OR_RETURN(const std::vector<coord::KeyValue> request,
                         agent.List(kPendingRequestKey));
  if (request.empty()) return absl::InternalError("the coordinator keeps no request");
  absl::MutexLock lock(&answers.mu);
  answers.asked = request.front().revision;
  const auto have_all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answers.mu) {
    return answers.count() >= nodes.size();
  };
  answers.mu.AwaitWithTimeout(absl::Condition(&have_all), kAnswerPatience);
  for (const int node : nodes) {
    const auto found = answers.latest.find(node);
    if (found == answers.latest.end() || found->second.first <= answers.asked) {
      result.silent.push_back(node);
      continue;
    }
    FERRY_ASSIGN_OR_RETURN(result.reports[node], DecodePending(found->second.second));
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
    absl::StrAppend(&text, "no answer within ", ShortDuration(kAnswerPatience), " of node",
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
