// SPDX-License-Identifier: Apache-2.0
// The part of `ferry status` about PyTorch's rendezvous.
#ifndef FERRY_CLI_STATUS_ELASTIC_H_
#define FERRY_CLI_STATUS_ELASTIC_H_

#include <cstddef>
#include <string>
#include <vector>

#include "coord/core/job_status.h"

namespace ferry::cli {

// Returns a table of runs, and a line for each run with waiting agents, which says who is missing.
// Empty if there are no runs. The table and the lines are limited to `max_lines` each.
std::string FormatElasticText(const std::vector<coord::ElasticRunStatus>& runs, size_t max_lines);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_ELASTIC_H_
