// SPDX-License-Identifier: Apache-2.0
// Fetches the last steps of a job from its coordinator.
#ifndef FERRY_CLI_TRACE_SESSION_H_
#define FERRY_CLI_TRACE_SESSION_H_

#include <string>

#include "absl/status/statusor.h"

#include "proto/ferry_trace.pb.h"

namespace ferry::cli {

//   count: number of newest steps.
//   Errors: UNAVAILABLE if nothing answers; UNIMPLEMENTED if it serves no graphs.
absl::StatusOr<ferry::v1::GetStepsResponse> FetchSteps(const std::string& coordinator, int count);

}  // namespace ferry::cli

#endif  // FERRY_CLI_TRACE_SESSION_H_
