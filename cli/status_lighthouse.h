// SPDX-License-Identifier: Apache-2.0
// The part of `ferry status` about torchft's lighthouse.
#ifndef FERRY_CLI_STATUS_LIGHTHOUSE_H_
#define FERRY_CLI_STATUS_LIGHTHOUSE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "coord/core/job_status.h"

namespace ferry::cli {

// Returns the quorum, why joined replicas have no next one yet, and a table of at most `max_lines`
// replicas; silent members of the quorum and joined replicas are shown first. Empty if no torchft
// client has ever called.
std::string FormatLighthouseText(const std::optional<coord::LighthouseStatus>& lighthouse,
                                 size_t max_lines);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_LIGHTHOUSE_H_
