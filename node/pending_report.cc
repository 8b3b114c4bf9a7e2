// SPDX-License-Identifier: Apache-2.0
// PendingReport: encoding as lines of escaped fields.
#include "node/pending_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/text.h"

namespace ferry {
namespace {

PendingRow ToRow(const PendingStepOp& op) {
  PendingRow row;
  row.step_id = op.step_id;
  // Only a fetch is pending at the receiver; the others are pending at the sender, requested by the
  // receiver.
  const bool is_fetch = op.side == PendingStepOp::Side::kFetch;
  const bool is_send =
      op.side == PendingStepOp::Side::kSend || op.side == PendingStepOp::Side::kTransfer;
  row.side = is_send ? "send" : "recv";
  row.peer = is_fetch ? op.key.src().task.task : op.key.dst().task.task;
  row.age = op.age;
  row.bytes = op.bytes;
  row.key = op.key.text();
  switch (op.side) {
    case PendingStepOp::Side::kSend:
      row.phase = "sent; not asked for yet";
      break;
    case PendingStepOp::Side::kRecv:
      row.phase = "asked for by the peer; not sent yet";
      break;
    case PendingStepOp::Side::kFetch:
      row.phase = op.phase.empty() ? "asked" : op.phase;
      break;
    case PendingStepOp::Side::kTransfer:
      row.phase = op.phase;
      break;
    case PendingStepOp::Side::kDeferred:
      row.phase = "asked for by the peer; the step has not begun here";
      break;
  }
  return row;
}

absl::Status Malformed(absl::string_view line) {
  return absl::InvalidArgumentError(absl::StrCat("a report of what waits says ", Quoted(line)));
}

}  // namespace

std::string PendingKey(int node_id) { return absl::StrCat(kPendingPrefix, node_id); }

PendingReport MakePendingReport(const PendingSource& source, absl::Duration min_age) {
  PendingReport report;
  const auto is_older = [](const PendingRow& a, const PendingRow& b) { return a.age > b.age; };
  source(min_age, [&](const PendingStepOp& op) {
    ++report.total;
    // A heap with the youngest of the kept rows at its front.
    if (report.rows.size() == kMaxPendingRows) {
      if (op.age <= report.rows.front().age) return;
      std::pop_heap(report.rows.begin(), report.rows.end(), is_older);
      report.rows.pop_back();
    }
    report.rows.push_back(ToRow(op));
    std::push_heap(report.rows.begin(), report.rows.end(), is_older);
  });
  std::sort(report.rows.begin(), report.rows.end(), is_older);
  return report;
}

std::string EncodePending(const PendingReport& report) {
  std::string text = absl::StrCat(report.total, "\n");
  for (const PendingRow& row : report.rows) {
    absl::StrAppend(&text, row.step_id, "\t", row.side, "\t", row.peer, "\t",
                    absl::ToInt64Milliseconds(row.age), "\t", row.bytes, "\t",
                    absl::CEscape(row.key), "\t", absl::CEscape(row.phase), "\n");
  }
  return text;
}

absl::StatusOr<PendingReport> DecodePending(absl::string_view text) {
  PendingReport report;
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.empty() || !absl::SimpleAtoi(lines[0], &report.total)) return Malformed(text);
  lines.erase(lines.begin());
  for (const absl::string_view line : lines) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, '\t');
    PendingRow row;
    int64_t age_ms = 0;
    uint64_t bytes = 0;
    const bool is_good =
        fields.size() == 7 && absl::SimpleAtoi(fields[0], &row.step_id) &&
        absl::SimpleAtoi(fields[2], &row.peer) && absl::SimpleAtoi(fields[3], &age_ms) &&
        absl::SimpleAtoi(fields[4], &bytes) && absl::CUnescape(fields[5], &row.key) &&
        absl::CUnescape(fields[6], &row.phase);
    if (!is_good || report.rows.size() == kMaxPendingRows) return Malformed(line);
    row.side = std::string(fields[1]);
    row.age = absl::Milliseconds(age_ms);
    row.bytes = bytes;
    report.rows.push_back(std::move(row));
  }
  return report;
}

absl::StatusOr<std::unique_ptr<coord::AgentWatch>> AnswerPendingRequests(coord::Agent& agent,
                                                                         int node_id,
                                                                         PendingSource source) {
  return agent.Watch(kPendingRequestKey, [&agent, node_id, source = std::move(source)](
                                             const coord::KeyChange& change) {
    if (change.deleted || change.entry.key != kPendingRequestKey) return;
    agent.SetAllAsync(
        {{PendingKey(node_id), EncodePending(MakePendingReport(source, kPendingAge))}},
        /*overwrite=*/true, [](const absl::Status&) {});
  });
}

}  // namespace ferry
