// SPDX-License-Identifier: Apache-2.0
// ferry status: the nodes' reports on tensor transfers.
#ifndef FERRY_CLI_STATUS_TRANSFERS_H_
#define FERRY_CLI_STATUS_TRANSFERS_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/time/time.h"

#include "coord/client/agent.h"
#include "node/transfer_report.h"

namespace ferry::cli {

// In larger jobs nodes are queried only if all are requested.
inline constexpr size_t kMaxAskedNodes = 128;

struct TransferAnswers {
  // By node.
  std::map<int, TransferReport> reports;
  // Nodes that transfer tensors and are connected, but have not answered in time, or with garbage.
  std::vector<int> silent;
  // The first such garbage's error; empty: there was none.
  std::string why_unreadable;
  // True if there are more nodes than the limit.
  bool is_too_large = false;
  // Why there are no answers; empty: there are.
  std::string error;
};

TransferAnswers AskTransferReports(coord::Agent& agent, absl::Duration timeout, size_t max_nodes);

// Formats a line per node, the available paths, and the reasons for unavailable ones. Empty if no
// node transfers tensors.
//   max_lines: limit per table.
std::string FormatTransfersText(const TransferAnswers& answers, size_t max_lines);
nlohmann::ordered_json TransfersJson(const TransferAnswers& answers);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_TRANSFERS_H_
