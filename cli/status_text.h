// SPDX-License-Identifier: Apache-2.0
// Formats a job's status as text and JSON.
#ifndef FERRY_CLI_STATUS_TEXT_H_
#define FERRY_CLI_STATUS_TEXT_H_

#include <string>

#include "cli/status_transfers.h"
#include "coord/core/job_status.h"

namespace ferry::cli {

// The data of ferry status.
struct JobView {
  coord::JobStatus status;
  TransferAnswers transfers;
};

// Formats a summary line, a table of nodes, open barriers, tensors, the store, and the job's error.
//   coordinator: its address.
//   max_lines: in jobs with more nodes, nodes in the same situation share a line.
std::string FormatStatusText(const JobView& view, const std::string& coordinator, size_t max_lines);

// Returns one object. Durations are in seconds; unknown values are null.
std::string FormatStatusJson(const JobView& view, const std::string& coordinator);

// "joined", "joining", "missing" (not seen yet), "left" or "failed".
const char* StateWord(const coord::TaskStatus& task);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_TEXT_H_
