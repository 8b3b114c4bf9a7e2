// SPDX-License-Identifier: Apache-2.0
// Transfer reports to and from their wire form.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "node/peer_record_proto.h"
#include "node/transfer_report.h"

namespace ferry {
namespace {

constexpr size_t kMaxReportRecordBytes = size_t{8} << 20;
// Each peer, and the node itself, has a path for tensors in the arena and one for others.
constexpr int kMaxReportPaths = static_cast<int>(2 * (kMaxReportPeers + 1));

// Infinity (unknown) is clamped to a finite number.
void SetEstimate(double value, CostBasis basis, absl::Duration age, peer::v1::Estimate& estimate) {
  estimate.set_value(std::min(value, 1e15));
  estimate.set_basis(static_cast<peer::v1::EstimateBasis>(basis));
  estimate.set_age_ms(absl::ToInt64Milliseconds(age));
}

bool ReadEstimate(const peer::v1::Estimate& estimate, double& value, CostBasis& basis,
                  absl::Duration& age) {
  value = estimate.value();
  if (!std::isfinite(value) || value < 0 || !peer::v1::EstimateBasis_IsValid(estimate.basis())) {
    return false;
  }
  basis = static_cast<CostBasis>(estimate.basis());
  age = absl::Milliseconds(estimate.age_ms());
  return true;
}

void AddCandidate(const PathCandidate& candidate, peer::v1::TransferPath& path) {
  peer::v1::TransferCandidate& added = *path.add_candidates();
  added.set_transport(candidate.name);
  if (!candidate.cost.ok()) {
    added.set_unavailable(std::string(candidate.cost.status().message()));
    return;
  }
  const PathCost& from = *candidate.cost;
  peer::v1::TransferCost& cost = *added.mutable_cost();
  SetEstimate(absl::ToDoubleSeconds(from.latency), from.latency_basis, from.latency_age,
              *cost.mutable_latency_s());
  SetEstimate(from.bytes_per_second, from.bandwidth_basis, from.bandwidth_age,
              *cost.mutable_bytes_per_s());
  cost.set_stages(from.stages);
  cost.set_note(from.note);
}

void AddPath(const PathReport& path, peer::v1::TransferReport& record) {
  peer::v1::TransferPath& added = *record.add_paths();
  added.set_peer(path.peer);
  added.set_is_in_arena(path.is_in_arena);
  added.set_channel(path.channel);
  if (!path.choice.ok()) {
    added.set_no_path(std::string(path.choice.status().message()));
    return;
  }
  const std::vector<PathCandidate>& candidates = path.choice->candidates;
  for (size_t i = 0; i < candidates.size(); ++i) {
    AddCandidate(candidates[i], added);
    if (candidates[i].cost.ok() && candidates[i].transport == path.choice->transport) {
      added.set_chosen(static_cast<uint32_t>(i));
    }
  }
}

// Errors: what is wrong, for InvalidPeerRecord.
absl::StatusOr<PathCandidate> ReadCandidate(const peer::v1::TransferCandidate& candidate,
                                            size_t index) {
  PathCandidate read;
  read.name = candidate.transport();
  read.transport = index;
  if (candidate.result_case() == peer::v1::TransferCandidate::kUnavailable) {
    read.cost = absl::UnavailableError(candidate.unavailable());
    return read;
  }
  if (candidate.result_case() != peer::v1::TransferCandidate::kCost) {
    return absl::InvalidArgumentError("a candidate has neither a cost nor a reason");
  }
  PathCost cost;
  double latency_s = 0;
  if (!ReadEstimate(candidate.cost().latency_s(), latency_s, cost.latency_basis,
                    cost.latency_age) ||
      !ReadEstimate(candidate.cost().bytes_per_s(), cost.bytes_per_second, cost.bandwidth_basis,
                    cost.bandwidth_age)) {
    return absl::InvalidArgumentError("an estimate is out of range");
  }
  cost.latency = absl::Seconds(latency_s);
  cost.stages = candidate.cost().stages();
  cost.note = candidate.cost().note();
  read.cost = std::move(cost);
  return read;
}

// Errors: as ReadCandidate.
absl::StatusOr<PathReport> ReadPath(const peer::v1::TransferPath& path) {
  PathReport read;
  read.peer = path.peer();
  read.is_in_arena = path.is_in_arena();
  read.channel = path.channel();
  if (path.has_no_path()) {
    if (path.candidates_size() > 0) {
      return absl::InvalidArgumentError("candidates although there is no path");
    }
    read.choice = absl::FailedPreconditionError(path.no_path());
    return read;
  }
  if (path.candidates_size() > static_cast<int>(kMaxReportCandidates)) {
    return absl::InvalidArgumentError(absl::StrCat("a path has ", path.candidates_size(),
                                                   " candidates, over the limit of ",
                                                   kMaxReportCandidates));
  }
  PathExplanation& choice = *read.choice;
  for (const peer::v1::TransferCandidate& candidate : path.candidates()) {
    FERRY_ASSIGN_OR_RETURN(choice.candidates.emplace_back(),
                           ReadCandidate(candidate, choice.candidates.size()));
  }
  choice.transport = SIZE_MAX;
  if (!path.has_chosen()) return read;
  if (path.chosen() >= choice.candidates.size() || !choice.candidates[path.chosen()].cost.ok()) {
    return absl::InvalidArgumentError("a path's choice is no candidate with a cost");
  }
  choice.transport = path.chosen();
  choice.cost = *choice.candidates[path.chosen()].cost;
  return read;
}

}  // namespace

std::string EncodeTransferReport(const TransferReport& report) {
  auto record = NewPeerRecord<peer::v1::TransferReport>();
  record.set_arena_pages(report.pages);
  record.set_arena_used_bytes(report.arena_used_bytes);
  record.set_arena_mapped_bytes(report.arena_mapped_bytes);
  record.set_arena_budget_bytes(report.arena_budget_bytes);
  record.set_refused_connections(report.refused_connections);
  record.set_refused_calls(report.refused_calls);
  record.set_last_refusal(report.last_refusal);
  record.set_peers(report.peers);
  for (const PathReport& path : report.paths) AddPath(path, record);
  return record.SerializeAsString();
}

absl::StatusOr<TransferReport> DecodeTransferReport(absl::string_view bytes, int node) {
  const PeerRecordName name = {.kind = "transfer report", .node = node, .key = ReportKey(node)};
  peer::v1::TransferReport record;
  FERRY_RETURN_IF_ERROR(ParsePeerRecord(bytes, kMaxReportRecordBytes, name, record));
  if (record.paths_size() > kMaxReportPaths) {
    return InvalidPeerRecord(name, absl::StrCat("it has ", record.paths_size(),
                                                " paths, over the limit of ", kMaxReportPaths));
  }
  TransferReport report;
  report.pages = record.arena_pages();
  report.arena_used_bytes = record.arena_used_bytes();
  report.arena_mapped_bytes = record.arena_mapped_bytes();
  report.arena_budget_bytes = record.arena_budget_bytes();
  report.refused_connections = record.refused_connections();
  report.refused_calls = record.refused_calls();
  report.last_refusal = record.last_refusal();
  report.peers = record.peers();
  for (const peer::v1::TransferPath& path : record.paths()) {
    absl::StatusOr<PathReport> read = ReadPath(path);
    if (!read.ok()) return InvalidPeerRecord(name, read.status().message());
    report.paths.push_back(*std::move(read));
  }
  return report;
}

}  // namespace ferry
