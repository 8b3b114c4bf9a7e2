// SPDX-License-Identifier: Apache-2.0
// The error text for a node that the job has lost.
#ifndef FERRY_RUNTIME_NODE_FAILURE_H_
#define FERRY_RUNTIME_NODE_FAILURE_H_

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace ferry {

// "has failed" of a node that reported `error` itself, and may be alive; "has died" of one that the
// coordinator misses.
inline absl::string_view FailedOrDied(const absl::Status& error) {
  // The coordinator's words, in Coordinator::ReportError.
  return absl::StrContains(error.message(), " reported: ") ? "has failed" : "has died";
}

}  // namespace ferry

#endif  // FERRY_RUNTIME_NODE_FAILURE_H_
