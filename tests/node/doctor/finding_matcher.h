// SPDX-License-Identifier: Apache-2.0
// Matches findings: Is(status, part of the observation, part of the remedy).
#ifndef FERRY_TESTS_NODE_DOCTOR_FINDING_MATCHER_H_
#define FERRY_TESTS_NODE_DOCTOR_FINDING_MATCHER_H_

#include <ostream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doctor/finding.h"

namespace ferry::doctor {

inline std::ostream& operator<<(std::ostream& out, const Finding& finding) {
  return out << FindingStatusName(finding.status) << " " << finding.name << ": " << finding.seen
             << " -> " << finding.todo;
}

// Findings that are ok or skipped need no remedy; all others name one.
MATCHER_P3(Is, status, seen, todo, "") {
  const bool needs_todo =
      arg.status == FindingStatus::kWarning || arg.status == FindingStatus::kWrong;
  return arg.status == status && !arg.name.empty() && arg.seen.find(seen) != std::string::npos &&
         arg.todo.find(todo) != std::string::npos && needs_todo == !arg.todo.empty();
}

inline auto IsOk(const std::string& seen) { return Is(FindingStatus::kOk, seen, std::string()); }
inline auto WasSkipped(const std::string& why) {
  return Is(FindingStatus::kSkipped, why, std::string());
}
inline auto IsWarning(const std::string& seen, const std::string& todo) {
  return Is(FindingStatus::kWarning, seen, todo);
}
inline auto IsWrong(const std::string& seen, const std::string& todo) {
  return Is(FindingStatus::kWrong, seen, todo);
}

}  // namespace ferry::doctor

#endif  // FERRY_TESTS_NODE_DOCTOR_FINDING_MATCHER_H_
