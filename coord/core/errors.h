// SPDX-License-Identifier: Apache-2.0
// What coordination errors carry besides code and message.
#ifndef FERRY_COORD_CORE_ERRORS_H_
#define FERRY_COORD_CORE_ERRORS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "coord/core/types.h"

namespace ferry::coord {

// Where an error came from.
struct ErrorOrigin {
  // A task reported it, as against the coordinator finding it.
  bool is_reported = false;
  TaskId source = kNoTask;
};

// Marks `status` as the coordinator's own answer: clients take it as final, while they may retry an
// unmarked one as a fault of the connection. An OK status stays as it is.
absl::Status CoordinationError(absl::Status status, ErrorOrigin origin = {});
std::optional<ErrorOrigin> GetErrorOrigin(const absl::Status& status);

// Notes who did not come, as ranges ("3-6,17").
absl::Status WithMissingTasks(absl::Status status, std::string ranges);
std::string GetMissingTasks(const absl::Status& status);

// The text of a reported error as it is kept and sent to everyone: at most 32 KiB of it.
std::string FirstOf(absl::string_view text);

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_ERRORS_H_
