// SPDX-License-Identifier: Apache-2.0
// TransferReport: encoding as lines of escaped fields.
#include "node/transfer_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "node/transfer_engine.h"

namespace ferry {
namespace {

using Fields = std::vector<absl::string_view>;

// Maximum number of candidates per path; more than there are transports.
constexpr size_t kMaxCandidates = 32;

absl::Status Malformed(absl::string_view line) {
  return absl::InvalidArgumentError(absl::StrCat("a report of an exchange says ", Quoted(line)));
}

// Infinity (unknown) is clamped to a finite number.
std::string Number(double value) { return absl::StrCat(std::min(value, 1e15)); }

std::string EncodeMeasure(double value, CostBasis basis, absl::Duration age) {
  return absl::StrCat(Number(value), "\t", static_cast<int>(basis), "\t",
                      absl::ToInt64Milliseconds(age));
}

bool DecodeMeasure(const Fields& fields, size_t at, double& value, CostBasis& basis,
                   absl::Duration& age) {
  int number = 0;
  int64_t age_ms = 0;
  if (!absl::SimpleAtod(fields[at], &value) || !(value >= 0) ||
      !absl::SimpleAtoi(fields[at + 1], &number) || number < 0 || number > 2 ||
      !absl::SimpleAtoi(fields[at + 2], &age_ms)) {
    return false;
  }
  basis = static_cast<CostBasis>(number);
  age = absl::Milliseconds(age_ms);
  return true;
}

std::string EncodePath(const PathReport& path) {
  std::string text = absl::StrCat("path\t", path.peer, "\t", path.is_in_arena ? 1 : 0, "\t",
                                  absl::CEscape(path.channel), "\n");
  if (!path.choice.ok()) {
    absl::StrAppend(&text, "none\t", absl::CEscape(path.choice.status().message()), "\n");
    return text;
  }
  for (const PathCandidate& each : path.choice->candidates) {
    if (!each.cost.ok()) {
      absl::StrAppend(&text, "not\t", absl::CEscape(each.name), "\t",
                      absl::CEscape(each.cost.status().message()), "\n");
      continue;
    }
    const PathCost& cost = *each.cost;
    const bool is_chosen = each.transport == path.choice->transport;
    absl::StrAppend(
        &text, is_chosen ? "by" : "dearer", "\t", absl::CEscape(each.name), "\t",
        EncodeMeasure(absl::ToDoubleSeconds(cost.latency), cost.latency_basis, cost.latency_age),
        "\t", EncodeMeasure(cost.bytes_per_second, cost.bandwidth_basis, cost.bandwidth_age), "\t",
        cost.stages, "\t", absl::CEscape(cost.note), "\n");
  }
  return text;
}

bool DecodeCandidate(const Fields& fields, PathExplanation& choice) {
  if (choice.candidates.size() == kMaxCandidates) return false;
  PathCandidate candidate;
  candidate.transport = choice.candidates.size();
  if (fields[0] == "not") {
    std::string reason;
    if (fields.size() != 3 || !absl::CUnescape(fields[1], &candidate.name) ||
        !absl::CUnescape(fields[2], &reason)) {
      return false;
    }
    candidate.cost = absl::UnavailableError(reason);
  } else {
    PathCost cost;
    double latency_s = 0;
    if (fields.size() != 10 || !absl::CUnescape(fields[1], &candidate.name) ||
        !DecodeMeasure(fields, 2, latency_s, cost.latency_basis, cost.latency_age) ||
        !DecodeMeasure(fields, 5, cost.bytes_per_second, cost.bandwidth_basis,
                       cost.bandwidth_age) ||
        !absl::SimpleAtoi(fields[8], &cost.stages) || !absl::CUnescape(fields[9], &cost.note)) {
      return false;
    }
    cost.latency = absl::Seconds(latency_s);
    if (fields[0] == "by") {
      choice.transport = candidate.transport;
      choice.cost = cost;
    }
    candidate.cost = std::move(cost);
  }
  choice.candidates.push_back(std::move(candidate));
  return true;
}

bool DecodeLine(const Fields& fields, TransferReport& report) {
  if (fields[0] == "arena") {
    uint64_t used = 0;
    uint64_t mapped = 0;
    uint64_t budget = 0;
    const bool is_good = fields.size() == 5 && absl::CUnescape(fields[1], &report.pages) &&
                         absl::SimpleAtoi(fields[2], &used) &&
                         absl::SimpleAtoi(fields[3], &mapped) &&
                         absl::SimpleAtoi(fields[4], &budget);
    report.arena_used_bytes = used;
    report.arena_mapped_bytes = mapped;
    report.arena_budget_bytes = budget;
    return is_good;
  }
  if (fields[0] == "refused") {
    return fields.size() == 4 && absl::SimpleAtoi(fields[1], &report.refused_connections) &&
           absl::SimpleAtoi(fields[2], &report.refused_calls) &&
           absl::CUnescape(fields[3], &report.last_refusal);
  }
  if (fields[0] == "peers") {
    return fields.size() == 2 && absl::SimpleAtoi(fields[1], &report.peers);
  }
  if (fields[0] == "path") {
    PathReport path;
    path.choice->transport = SIZE_MAX;
    if (fields.size() != 4 || report.paths.size() >= 2 * (kMaxReportPeers + 1) ||
        !absl::SimpleAtoi(fields[1], &path.peer) || !absl::CUnescape(fields[3], &path.channel)) {
      return false;
    }
    path.is_in_arena = fields[2] == "1";
    report.paths.push_back(std::move(path));
    return true;
  }
  if (fields[0] == "none" && !report.paths.empty()) {
    std::string why;
    if (fields.size() != 2 || !absl::CUnescape(fields[1], &why)) return false;
    report.paths.back().choice = absl::FailedPreconditionError(why);
    return true;
  }
  if (fields[0] == "by" || fields[0] == "dearer" || fields[0] == "not") {
    return !report.paths.empty() && report.paths.back().choice.ok() &&
           DecodeCandidate(fields, *report.paths.back().choice);
  }
  // A line of a later version: ignored.
  return true;
}

}  // namespace

std::string ReportKey(int node_id) { return absl::StrCat(kReportPrefix, node_id); }

TransferReport MakeExchangeReport(const TransferEngine& exchange) {
  TransferReport report;
  const HostArenaStats arena = exchange.arena_stats();
  report.pages = DescribePages(arena);
  report.arena_used_bytes = arena.used_bytes;
  report.arena_mapped_bytes = arena.mapped_bytes;
  report.arena_budget_bytes = exchange.arena_budget_bytes();
  ConnectionManagerStats channels = exchange.connection_stats();
  report.refused_connections = channels.refused;
  report.last_refusal = std::move(channels.last_refusal);
  report.refused_calls = exchange.refused_calls();
  exchange.AddPaths(kReportBytes, kMaxReportPeers, report);
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
  std::vector<std::shared_ptr<TensorResponder>> servers = fetcher_->Servers();
  std::sort(servers.begin(), servers.end(), [](const auto& a, const auto& b) {
    return a->consumer().peer.node_id < b->consumer().peer.node_id;
  });
  report.peers = static_cast<int64_t>(servers.size());
  servers.resize(std::min(servers.size(), max_peers));
  for (const auto& server : servers) {
    for (const bool is_in_arena : {true, false}) {
      add(server->consumer().peer.node_id, server->DescribeChannel(), is_in_arena,
          server->PathTo(bytes, is_in_arena));
    }
  }
}

std::string EncodeExchangeReport(const TransferReport& report) {
  std::string text =
      absl::StrCat("arena\t", absl::CEscape(report.pages), "\t", report.arena_used_bytes, "\t",
                   report.arena_mapped_bytes, "\t", report.arena_budget_bytes, "\n");
  absl::StrAppend(&text, "refused\t", report.refused_connections, "\t", report.refused_calls, "\t",
                  absl::CEscape(report.last_refusal), "\n");
  absl::StrAppend(&text, "peers\t", report.peers, "\n");
  for (const PathReport& path : report.paths) text += EncodePath(path);
  return text;
}

absl::StatusOr<TransferReport> DecodeExchangeReport(absl::string_view text) {
  TransferReport report;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (!DecodeLine(absl::StrSplit(line, '\t'), report)) return Malformed(line);
  }
  return report;
}

absl::StatusOr<std::unique_ptr<coord::AgentWatch>> AnswerReportRequests(
    coord::Agent& agent, int node_id, std::function<TransferReport()> source) {
  return agent.Watch(kReportRequestKey,
                     [&agent, node_id, source = std::move(source)](const coord::KeyChange& change) {
                       if (change.deleted || change.entry.key != kReportRequestKey) return;
                       agent.SetAllAsync({{ReportKey(node_id), EncodeExchangeReport(source())}},
                                         /*overwrite=*/true, [](const absl::Status&) {});
                     });
}

}  // namespace ferry
