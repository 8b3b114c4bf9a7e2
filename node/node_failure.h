// SPDX-License-Identifier: Apache-2.0
// The error text for a node that the job has lost.
#ifndef FERRY_NODE_NODE_FAILURE_H_
#define FERRY_NODE_NODE_FAILURE_H_

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace ferry {

// "has failed" for a node that reported `error` itself and may be alive; "has died" for one that
// the coordinator considers dead.
inline absl::string_view FailedOrDied(const absl::Status& error) {
  // Coordinator::ReportError produces this text.
  return absl::StrContains(error.message(), " reported: ") ? "has failed" : "has died";
}

}  // namespace ferry

#endif  // FERRY_NODE_NODE_FAILURE_H_
