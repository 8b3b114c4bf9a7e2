// SPDX-License-Identifier: Apache-2.0
// Names and counts of findings.
#include "doctor/finding.h"

namespace ferry::doctor {

absl::string_view FindingStatusName(FindingStatus status) {
  switch (status) {
    case FindingStatus::kOk:
      return "ok";
    case FindingStatus::kWarning:
      return "warning";
    case FindingStatus::kWrong:
      return "wrong";
    case FindingStatus::kSkipped:
      return "skipped";
  }
  return "unknown";
}

std::optional<FindingStatus> ParseFindingStatus(absl::string_view name) {
  for (const FindingStatus status : {FindingStatus::kOk, FindingStatus::kWarning,
                                     FindingStatus::kWrong, FindingStatus::kSkipped}) {
    if (FindingStatusName(status) == name) return status;
  }
  return std::nullopt;
}

Finding Ok(std::string name, std::string seen) {
  return {std::move(name), FindingStatus::kOk, std::move(seen), ""};
}

Finding Warning(std::string name, std::string seen, std::string todo) {
  return {std::move(name), FindingStatus::kWarning, std::move(seen), std::move(todo)};
}

Finding Wrong(std::string name, std::string seen, std::string todo) {
  return {std::move(name), FindingStatus::kWrong, std::move(seen), std::move(todo)};
}

Finding Skipped(std::string name, std::string why) {
  return {std::move(name), FindingStatus::kSkipped, std::move(why), ""};
}

FindingCounts CountFindings(absl::Span<const Finding> findings) {
  FindingCounts counts;
  for (const Finding& finding : findings) {
    switch (finding.status) {
      case FindingStatus::kOk:
        ++counts.ok;
        break;
      case FindingStatus::kWarning:
        ++counts.warnings;
        break;
      case FindingStatus::kWrong:
        ++counts.wrong;
        break;
      case FindingStatus::kSkipped:
        ++counts.skipped;
        break;
    }
  }
  return counts;
}

}  // namespace ferry::doctor
