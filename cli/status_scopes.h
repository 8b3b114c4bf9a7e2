// SPDX-License-Identifier: Apache-2.0
// The part of `ferry status` about PyTorch's stores.
#ifndef FERRY_CLI_STATUS_SCOPES_H_
#define FERRY_CLI_STATUS_SCOPES_H_

#include <cstddef>
#include <string>

#include "coord/core/job_status.h"

namespace ferry::cli {

// Returns a table of scopes, and a line for each key that clients wait for, with the ranks that
// have not set it. Empty if there are no scopes. The table and the lines are limited to `max_lines`
// each.
std::string FormatScopesText(const coord::JobStatus& status, size_t max_lines);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_SCOPES_H_
