// SPDX-License-Identifier: Apache-2.0
// ferry status --pending: operations of a job that have been pending for long.
#ifndef FERRY_CLI_STATUS_PENDING_H_
#define FERRY_CLI_STATUS_PENDING_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "coord/client/agent.h"
#include "node/pending_report.h"

namespace ferry::cli {

struct PendingAnswers {
  // By node.
  std::map<int, PendingReport> reports;
  // Nodes that transfer tensors, are connected, and have not answered in time: they hang.
  std::vector<int> silent;
};

// Queries all nodes that transfer tensors. Blocks for two seconds at most.
absl::StatusOr<PendingAnswers> AskPending(coord::Agent& agent);

//   max_lines: limit of the table.
std::string FormatPendingText(const PendingAnswers& answers, size_t max_lines);
std::string FormatPendingJson(const PendingAnswers& answers);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_PENDING_H_
