// SPDX-License-Identifier: Apache-2.0
// Flags that several verbs share.
#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/text.h"
#include "cli/verb.h"

namespace ferry::cli {

absl::Status AsFailure(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::FailedPreconditionError(status.message());
}

CLI::Validator Within(int least, int most) {
  CLI::Validator range = CLI::Range(least, most);
  range.description("");
  return range;
}

CLI::Option* AddDuration(CLI::App& app, const std::string& flag, absl::Duration& value,
                         const std::string& description, absl::Duration least) {
  CLI::Option* option = app.add_option_function<std::string>(
      flag,
      [&value, flag, least](const std::string& text) {
        if (!absl::ParseDuration(text, &value) || value < absl::ZeroDuration()) {
          throw CLI::ValidationError(flag, "\"" + text + "\" is no duration such as 30s or 2m");
        }
        if (value < least) {
          throw CLI::ValidationError(
              flag, text + " is too short; at least " + absl::FormatDuration(least));
        }
      },
      description);
  option->type_name("DURATION")->default_str(absl::FormatDuration(value));
  return option;
}

CLI::Option* AddLimit(CLI::App& app, const std::string& flag, size_t& value,
                      const std::string& description, uint64_t least) {
  // Not CLI11's own conversion, which takes -1 for the largest number.
  CLI::Option* option = app.add_option_function<std::string>(
      flag,
      [&value, flag, least](const std::string& text) {
        uint64_t number = 0;
        if (!absl::SimpleAtoi(text, &number) || number < least) {
          throw CLI::ValidationError(
              flag, "\"" + text + "\" is no number from " + std::to_string(least) + " to 2^64-1");
        }
        value = number;
      },
      description);
  option->type_name("N")->default_str(std::to_string(value));
  return option;
}

absl::Status CheckAddress(absl::string_view flag, absl::string_view text) {
  const size_t colon = text.rfind(':');
  const absl::string_view digits = colon == absl::string_view::npos ? "" : text.substr(colon + 1);
  int port = 0;
  const bool is_address = colon != absl::string_view::npos && colon > 0 &&
                          std::all_of(text.begin(), text.end(), absl::ascii_isgraph) &&
                          std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
                          absl::SimpleAtoi(digits, &port) && port >= 1 && port <= 65535;
  if (is_address) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", Quoted(text), " is not HOST:PORT with a port from 1 to 65535"));
}

CLI::Option* AddCoordinatorFlag(CLI::App& app, std::string& address) {
  return app.add_option("--coordinator", address, "where the coordinator listens")
      ->type_name("HOST:PORT")
      ->envname("FERRY_COORDINATOR");
}

}  // namespace ferry::cli
