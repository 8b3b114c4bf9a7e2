// SPDX-License-Identifier: Apache-2.0
// The part of ferry status about torchft's quorums.
#ifndef FERRY_CLI_STATUS_LIGHTHOUSE_H_
#define FERRY_CLI_STATUS_LIGHTHOUSE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "coord/core/job_status.h"

namespace ferry::cli {

// The quorum, a table of the replicas, and why those that have joined have no quorum yet. Empty if
// no client of torchft's has ever called; at most `max_lines` replicas, those that wait or are
// silent first.
std::string FormatLighthouseText(const std::optional<coord::LighthouseStatus>& lighthouse,
                                 size_t max_lines);

}  // namespace ferry::cli

#endif  // FERRY_CLI_STATUS_LIGHTHOUSE_H_
