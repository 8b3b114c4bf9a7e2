// SPDX-License-Identifier: Apache-2.0
// PendingReport: made on request.
#include "node/pending_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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
