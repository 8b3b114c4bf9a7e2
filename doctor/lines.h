// SPDX-License-Identifier: Apache-2.0
// The line protocol between ferry doctor and its helper processes, and findings as JSON.
#ifndef FERRY_DOCTOR_LINES_H_
#define FERRY_DOCTOR_LINES_H_

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

#include "doctor/finding.h"

namespace ferry::cli {

// A helper (ferry doctor-helper ROLE) writes one JSON object per line; its stdout may have other
// lines too, since libraries write there. Members, each in a line of its own:
//   check     the name of the next check: if the helper dies or hangs, that one has failed
//   phase     the current operation, for messages
//   finding   a completed finding
//   gpus, cuda_version      of role gpus: the number of GPUs, and the driver's CUDA version
//   socket    of role export: the address for the importer
//   descriptor, handle      of role import: {reason, taken_s}; no reason if it worked
//   error     why the rest of the role cannot be run
//   end       true: everything has been run
using Json = nlohmann::ordered_json;

Json FindingJson(const doctor::Finding& finding);
// Returns nullopt if `json` is not a finding.
std::optional<doctor::Finding> ParseFinding(const Json& json);

// Returns the object in a helper's line, or nullopt.
std::optional<Json> ParseHelperLine(absl::string_view line);

// Writes a line of a helper, and flushes it.
void WriteHelperLine(absl::string_view member, const Json& value);

}  // namespace ferry::cli

#endif  // FERRY_DOCTOR_LINES_H_
