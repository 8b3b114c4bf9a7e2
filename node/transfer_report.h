// SPDX-License-Identifier: Apache-2.0
// What a node says of its part in moving tensors: asked for and answered through the store.
#ifndef FERRY_NODE_TRANSFER_REPORT_H_
#define FERRY_NODE_TRANSFER_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "coord/client/agent.h"
#include "transport/transports.h"

namespace ferry {

class TransferEngine;

// As of pending operations (pending_report.h), under keys of their own: whoever wants to know sets
// kReportRequestKey, and every node that moves tensors sets ReportKey(node).
inline constexpr char kReportRequestKey[] = "ferry/report-request";
inline constexpr char kReportPrefix[] = "ferry/report/";
std::string ReportKey(int node_id);

// Peers of whose paths a report tells at most, the smallest node ids first.
inline constexpr size_t kMaxReportPeers = 64;
// Of the tensors that the paths are for: large enough that bandwidth decides.
inline constexpr size_t kReportBytes = size_t{1} << 20;

// Which way a tensor in the host's memory goes from the node to a peer with which it has a control
// channel, or to itself.
struct PathReport {
  int peer = 0;
  // "shm", "tcp to ..."; empty: none, it is the node itself.
  std::string channel;
  // Where it lies at the node: in the arena, or elsewhere.
  bool is_in_arena = true;
  // Indices are of the candidates.
  absl::StatusOr<PathExplanation> choice = PathExplanation();
};

struct TransferReport {
  // DescribePages.
  std::string pages;
  size_t arena_used_bytes = 0;
  size_t arena_mapped_bytes = 0;
  size_t arena_budget_bytes = 0;
  // Connections, and calls over gRPC, of who did not prove to be of the job.
  int64_t refused_connections = 0;
  int64_t refused_calls = 0;
  // Of a connection; empty: none was.
  std::string last_refusal;
  // How many peers there are control channels with.
  int64_t peers = 0;
  std::vector<PathReport> paths;
};

TransferReport MakeExchangeReport(const TransferEngine& exchange);

// A line for each thing, with tabs between the fields.
std::string EncodeExchangeReport(const TransferReport& report);
//   Errors: INVALID_ARGUMENT quoting the line.
absl::StatusOr<TransferReport> DecodeExchangeReport(absl::string_view text);

// Answers as long as it lives. `agent` and what `source` needs outlive the watch.
//   Errors: as Agent::Watch.
absl::StatusOr<std::unique_ptr<coord::AgentWatch>> AnswerReportRequests(
    coord::Agent& agent, int node_id, std::function<TransferReport()> source);

}  // namespace ferry

#endif  // FERRY_NODE_TRANSFER_REPORT_H_
