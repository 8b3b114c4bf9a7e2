// SPDX-License-Identifier: Apache-2.0
// TransferReport: made on request.
#include "node/transfer_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "node/transfer_engine.h"

namespace ferry {

std::string ReportKey(int node_id) { return absl::StrCat(kReportPrefix, node_id); }

TransferReport MakeTransferReport(const TransferEngine& engine) {
  TransferReport report;
  const HostArenaStats arena = engine.arena_stats();
  report.pages = DescribePages(arena);
  report.arena_used_bytes = arena.used_bytes;
  report.arena_mapped_bytes = arena.mapped_bytes;
  report.arena_budget_bytes = engine.arena_budget_bytes();
  ConnectionManagerStats channels = engine.connection_stats();
  report.refused_connections = channels.refused;
  report.last_refusal = std::move(channels.last_refusal);
  report.refused_calls = engine.refused_calls();
  engine.AddPaths(kReportBytes, kMaxReportPeers, report);
  return report;
}

void TransferEngine::AddPaths(size_t bytes, size_t max_peers, TransferReport& report) const {
  const auto add = [&report](int peer, std::string channel, bool is_in_arena,
                             absl::StatusOr<PathExplanation> choice) {
    report.paths.push_back({.peer = peer,
                            .channel = std::move(channel),
                            .is_in_arena = is_in_arena,
                            .choice = std::move(choice)});
  };
  absl::StatusOr<PathExplanation> within = PathFrom(self(), bytes, /*is_in_arena=*/true);
  if (within.ok()) {
    // Alternatives for in-process transfers are of no interest.
    std::erase_if(within->candidates, [&within](const PathCandidate& each) {
      return each.transport != within->transport;
    });
  }
  add(self().peer.node_id, "", true, std::move(within));
  std::vector<std::shared_ptr<TensorResponder>> responders = fetcher_->Responders();
  std::sort(responders.begin(), responders.end(), [](const auto& a, const auto& b) {
    return a->consumer().peer.node_id < b->consumer().peer.node_id;
  });
  report.peers = static_cast<int64_t>(responders.size());
  responders.resize(std::min(responders.size(), max_peers));
  for (const auto& responder : responders) {
    for (const bool is_in_arena : {true, false}) {
      add(responder->consumer().peer.node_id, responder->DescribeChannel(), is_in_arena,
          responder->PathTo(bytes, is_in_arena));
    }
  }
}

absl::StatusOr<std::unique_ptr<coord::AgentWatch>> AnswerReportRequests(
    coord::Agent& agent, int node_id, std::function<TransferReport()> source) {
  return agent.Watch(kReportRequestKey,
                     [&agent, node_id, source = std::move(source)](const coord::KeyChange& change) {
                       if (change.deleted || change.entry.key != kReportRequestKey) return;
                       agent.SetAllAsync({{ReportKey(node_id), EncodeTransferReport(source())}},
                                         /*overwrite=*/true, [](const absl::Status&) {});
                     });
}

}  // namespace ferry
