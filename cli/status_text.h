// SPDX-License-Identifier: Apache-2.0
// The status of a job for people and for programs.
#ifndef FERRY_CLI_STATUS_TEXT_H_
#define FERRY_CLI_STATUS_TEXT_H_

#include <string>

#include "cli/status_exchange.h"
#include "coord/core/job_status.h"

namespace ferry::cli {

// What ferry status knows.
struct JobView {
  coord::JobStatus status;
  TransferAnswers exchange;
};

// A line on the whole, a table of nodes, open barriers, tensors, the store, and the job's error.
//   coordinator: its address.
//   max_lines: with more nodes than that, nodes in the same situation share a line.
std::string FormatStatusText(const JobView& view, const std::string& coordinator, size_t max_lines);

// One object. Durations are seconds; what is not known is null.
std::string FormatStatusJson(const JobView& view, const std::string& coordinator);

// "joined", "joining", "missing" (not seen yet), "left" or "failed".
const char* StateWord(const coord::TaskStatus& task);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_TEXT_H_
