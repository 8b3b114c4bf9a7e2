// SPDX-License-Identifier: Apache-2.0
// Errors of transfers with the details that the public API reads.
#ifndef FERRY_API_TRANSFER_ERROR_H_
#define FERRY_API_TRANSFER_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include <ferry/namespace.h>

namespace ferry::v0 {

// DEADLINE_EXCEEDED: "waited 5s in step 3 for ...: not sent yet".
//   phase: what TransferPhase returns of it.
absl::Status TransferTimeout(absl::string_view waited, absl::string_view what,
                             absl::string_view phase);

}  // namespace ferry::v0

#endif  // FERRY_API_TRANSFER_ERROR_H_
