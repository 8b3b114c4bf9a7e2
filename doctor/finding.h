// SPDX-License-Identifier: Apache-2.0
// Finding: the result of one check of ferry doctor, and what to do about it.
#ifndef FERRY_DOCTOR_FINDING_H_
#define FERRY_DOCTOR_FINDING_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry::doctor {

enum class FindingStatus {
  kOk,
  kWarning,  // works, but slower or less than it could
  kWrong,    // a job that needs it fails
  kSkipped,  // nothing to check, or the check was not possible
};

// "ok", "warning", "wrong", "skipped".
absl::string_view FindingStatusName(FindingStatus status);
std::optional<FindingStatus> ParseFindingStatus(absl::string_view name);

// A value.
struct Finding {
  std::string name;  // "memlock", "gpu:0 ipc"
  FindingStatus status = FindingStatus::kOk;
  std::string seen;  // the observation, or why the check was skipped
  std::string todo;  // empty if there is nothing to do

  friend bool operator==(const Finding&, const Finding&) = default;
};

Finding Ok(std::string name, std::string seen);
Finding Warning(std::string name, std::string seen, std::string todo);
Finding Wrong(std::string name, std::string seen, std::string todo);
Finding Skipped(std::string name, std::string why);

struct FindingCounts {
  int ok = 0;
  int warnings = 0;
  int wrong = 0;
  int skipped = 0;
};

FindingCounts CountFindings(absl::Span<const Finding> findings);

}  // namespace ferry::doctor

#endif  // FERRY_DOCTOR_FINDING_H_
