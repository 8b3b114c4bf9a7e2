// SPDX-License-Identifier: Apache-2.0
// The part of ferry status about the nodes of PyTorch's jobs.
#ifndef FERRY_CLI_STATUS_ELASTIC_H_
#define FERRY_CLI_STATUS_ELASTIC_H_

#include <cstddef>
#include <string>
#include <vector>

#include "coord/core/job_status.h"

namespace ferry::cli {

// A table of runs, and a line for each whose agents wait, with those that are missing. Empty if
// there are no runs; at most `max_lines` lines of either kind.
std::string FormatElasticText(const std::vector<coord::ElasticRunStatus>& runs, size_t max_lines);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_ELASTIC_H_
