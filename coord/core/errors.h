// SPDX-License-Identifier: Apache-2.0
// Annotations of coordination errors besides code and message.
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
  // Reported by a task, rather than detected by the coordinator.
  bool is_reported = false;
  TaskId source = kNoTask;
};

// Marks `status` as the coordinator's own answer: clients take it as final, while they may retry
// an unmarked one as a connection failure. OK is returned unchanged.
absl::Status CoordinationError(absl::Status status, ErrorOrigin origin = {});
std::optional<ErrorOrigin> GetErrorOrigin(const absl::Status& status);

// Annotates the missing tasks, as ranges ("3-6,17").
absl::Status WithMissingTasks(absl::Status status, std::string ranges);
std::string GetMissingTasks(const absl::Status& status);

// The text of a reported error as it is kept and propagated: at most 32 KiB of it.
std::string FirstOf(absl::string_view text);

}  // namespace ferry::coord

#endif  // FERRY_COORD_CORE_ERRORS_H_
