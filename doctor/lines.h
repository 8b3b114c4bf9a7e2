// SPDX-License-Identifier: Apache-2.0
// What ferry doctor and the processes that it starts say to each other, and findings as JSON.
#ifndef FERRY_DOCTOR_LINES_H_
#define FERRY_DOCTOR_LINES_H_

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

#include "doctor/finding.h"

namespace ferry::cli {

// A helper (ferry doctor-helper ROLE) writes one JSON object a line; its stdout may have other
// lines too, since libraries write there. Members, each in a line of its own:
//   check     the name of the check that comes now: if the helper dies or hangs, that one is wrong
//   phase     what is tried now, for messages
//   finding   one that is complete
//   gpus, cuda_version      of role gpus: how many there are, and the driver's CUDA
//   socket    of role export: where the importer connects
//   descriptor, handle      of role import: {reason, taken_s}; no reason if it worked
//   error     why the rest of the role cannot be done
//   end       true: everything has been done
using Json = nlohmann::ordered_json;

Json FindingJson(const doctor::Finding& finding);
// Nothing if it is none.
std::optional<doctor::Finding> ParseFinding(const Json& json);

// The object that a helper's line holds, or nothing.
std::optional<Json> ParseHelperLine(absl::string_view line);

// Writes a line of a helper, at once.
void TellDoctor(absl::string_view member, const Json& value);

}  // namespace ferry::cli

#endif  // FERRY_DOCTOR_LINES_H_
