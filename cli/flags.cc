// SPDX-License-Identifier: Apache-2.0
// Flags that several verbs share.
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
                         const std::string& description) {
  CLI::Option* option = app.add_option_function<std::string>(
      flag,
      [&value, flag](const std::string& text) {
        if (!absl::ParseDuration(text, &value) || value < absl::ZeroDuration()) {
          throw CLI::ValidationError(flag, "\"" + text + "\" is no duration such as 30s or 2m");
        }
      },
      description);
  option->type_name("DURATION")->default_str(absl::FormatDuration(value));
  return option;
}

CLI::Option* AddCoordinatorFlag(CLI::App& app, std::string& address) {
  return app.add_option("--coordinator", address, "where the coordinator listens")
      ->type_name("HOST:PORT")
      ->envname("FERRY_COORDINATOR");
}

}  // namespace ferry::cli
