// SPDX-License-Identifier: Apache-2.0
// A node's report of its transfer paths and limits: requested and answered through the store.
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

// As for pending operations (pending_report.h), under separate keys: the requester sets
// kReportRequestKey, and every node that transfers tensors sets ReportKey(node).
inline constexpr char kReportRequestKey[] = "ferry/report-request";
inline constexpr char kReportPrefix[] = "ferry/report/";
std::string ReportKey(int node_id);

// Maximum number of peers whose paths are reported, the smallest node ids first.
inline constexpr size_t kMaxReportPeers = 64;
// Maximum number of candidates per path: each transport of two processes, and kLocalPath.
inline constexpr size_t kMaxReportCandidates = 2 * kMaxTransports + 1;
// Tensor size for which paths are reported: large enough that bandwidth decides.
inline constexpr size_t kReportBytes = size_t{1} << 20;

// The path of a tensor in host memory from the node to a peer with an open control channel, or to
// itself.
struct PathReport {
  int peer = 0;
  // "shm", "tcp to ..."; empty: the peer is the node itself.
  std::string channel;
  // Whether the tensor lies in the node's arena.
  bool is_in_arena = true;
  // Its indices refer to the candidates.
  absl::StatusOr<PathExplanation> choice = PathExplanation();
};

struct TransferReport {
  // Result of DescribePages.
  std::string pages;
  size_t arena_used_bytes = 0;
  size_t arena_mapped_bytes = 0;
  size_t arena_budget_bytes = 0;
  // Connections and gRPC calls that failed authentication.
  int64_t refused_connections = 0;
  int64_t refused_calls = 0;
  // The last rejected connection's error; empty: none was rejected.
  std::string last_refusal;
  // Number of peers with an open control channel.
  int64_t peers = 0;
  std::vector<PathReport> paths;
};

TransferReport MakeTransferReport(const TransferEngine& engine);

// A ferry.peer.v1.TransferReport.
std::string EncodeTransferReport(const TransferReport& report);
//   node: the node that published it at ReportKey(node), for errors.
//   Errors: INVALID_ARGUMENT naming both; FAILED_PRECONDITION it is of another major version.
absl::StatusOr<TransferReport> DecodeTransferReport(absl::string_view bytes, int node);

// Answers requests while the returned watch exists. `agent` and whatever `source` uses must outlive
// it.
//   Errors: as Agent::Watch.
absl::StatusOr<std::unique_ptr<coord::AgentWatch>> AnswerReportRequests(
    coord::Agent& agent, int node_id, std::function<TransferReport()> source);

}  // namespace ferry

#endif  // FERRY_NODE_TRANSFER_REPORT_H_
