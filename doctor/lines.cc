// SPDX-License-Identifier: Apache-2.0
// JSON objects, one per line.
#include "doctor/lines.h"

#include <cstdio>

#include "launch/printable.h"

namespace ferry::cli {

Json FindingJson(const doctor::Finding& finding) {
  // Texts of libraries and the kernel may not be UTF-8.
  return {{"name", Printable(finding.name)},
          {"status", std::string(doctor::FindingStatusName(finding.status))},
          {"seen", Printable(finding.seen)},
          {"todo", Printable(finding.todo)}};
}

std::optional<doctor::Finding> ParseFinding(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  for (const char* member : {"name", "status", "seen", "todo"}) {
    if (!json.contains(member) || !json[member].is_string()) return std::nullopt;
  }
  const auto status = doctor::ParseFindingStatus(json["status"].get<std::string>());
  if (!status) return std::nullopt;
  return doctor::Finding{json["name"].get<std::string>(), *status, json["seen"].get<std::string>(),
                         json["todo"].get<std::string>()};
}

std::optional<Json> ParseHelperLine(absl::string_view line) {
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

void WriteHelperLine(absl::string_view member, const Json& value) {
  const Json line = {{std::string(member), value}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace ferry::cli
