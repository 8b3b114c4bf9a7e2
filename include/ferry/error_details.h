// SPDX-License-Identifier: Apache-2.0
// Details of errors, for programs that act on them; the message tells them to people.
#ifndef FERRY_INCLUDE_FERRY_ERROR_DETAILS_H_
#define FERRY_INCLUDE_FERRY_ERROR_DETAILS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

#include <ferry/namespace.h>

namespace ferry {
FERRY_NAMESPACE_BEGIN

// The ranks that Node::Join, CoordinatorClient::Barrier, LiveNodes or Node::ShutdownCollective has
// waited for, ascending; empty for errors of other calls.
std::vector<int> MissingRanks(const absl::Status& error);
// How far a transfer had got when its deadline passed, such as "not sent yet"; empty for other
// errors. For people: texts may change.
std::string TransferPhase(const absl::Status& error);

FERRY_NAMESPACE_END
}  // namespace ferry

#endif  // FERRY_INCLUDE_FERRY_ERROR_DETAILS_H_
