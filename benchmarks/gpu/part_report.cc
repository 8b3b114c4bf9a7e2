// SPDX-License-Identifier: Apache-2.0
// The fields of a report.
#include "benchmarks/gpu/part_report.h"

#include <string>

namespace ferry::check {

Json EmptyReport(const Part& part) {
  return {{"name", part.name},
          {"title", part.title},
          {"status", ""},
          {"reason", ""},
          {"seconds", 0.0},
          {"checks", Json::array()},
          {"figures", Json::array()},
          {"notes", Json::array()},
          {"facts", Json::object()},
          {"last_words", ""}};
}

Json SkippedReport(const Part& part, absl::string_view reason) {
  Json result = EmptyReport(part);
  result["status"] = "skipped";
  result["reason"] = std::string(reason);
  return result;
}

}  // namespace ferry::check
