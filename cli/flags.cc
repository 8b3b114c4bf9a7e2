// SPDX-License-Identifier: Apache-2.0
// Flags shared by several verbs.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/numbers.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/verb.h"
#include "launch/launch_environment.h"
#include "node/identity.h"

namespace ferry::cli {
namespace {

[[noreturn]] void Refuse(const std::string& flag, const std::string& text,
                         const std::string& what) {
  throw CLI::ValidationError(flag, absl::StrCat(Quoted(text), " is ", what));
}

// Bounds equal to the type's limits are reported as its width, which is easier to read.
template <typename Number>
std::string NoWholeNumber(Number least, Number most) {
  using Limits = std::numeric_limits<Number>;
  if (least == Limits::min() && most == Limits::max()) {
    return absl::StrCat("not a whole number of ", 8 * sizeof(Number), " bits");
  }
  const bool is_open = std::is_same_v<Number, uint64_t> && most == Limits::max();
  return absl::StrCat("not a whole number from ", least, " to ",
                      is_open ? "2^64-1" : absl::StrCat(most));
}

// Number: int or int64_t. set: stores the parsed value.
template <typename Number, typename Set>
CLI::Option* AddWhole(CLI::App& app, const std::string& flag, const std::string& description,
                      Number least, Number most, Set set) {
  CLI::Option* option = app.add_option_function<std::string>(
      flag,
      [flag, least, most, set](const std::string& text) {
        const std::optional<int64_t> number = ParseWhole(text, least, most);
        if (!number) Refuse(flag, text, NoWholeNumber(least, most));
        set(static_cast<Number>(*number));
      },
      description);
  return option->type_name("N");
}

}  // namespace

absl::Status AsFailure(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::FailedPreconditionError(status.message());
}

CLI::Option* AddNumber(CLI::App& app, const std::string& flag, int& value,
                       const std::string& description, int least, int most) {
  return AddWhole(app, flag, description, least, most, [&value](int number) { value = number; })
      ->default_str(absl::StrCat(value));
}

CLI::Option* AddNumber(CLI::App& app, const std::string& flag, std::optional<int>& value,
                       const std::string& description, int least, int most) {
  return AddWhole(app, flag, description, least, most, [&value](int number) { value = number; });
}

CLI::Option* AddNumber(CLI::App& app, const std::string& flag, int64_t& value,
                       const std::string& description, int64_t least, int64_t most) {
  return AddWhole(app, flag, description, least, most, [&value](int64_t number) { value = number; })
      ->default_str(absl::StrCat(value));
}

CLI::Option* AddReal(CLI::App& app, const std::string& flag, double& value,
                     const std::string& description, LowerBound from, double least, double most) {
  CLI::Option* option = app.add_option_function<std::string>(
      flag,
      [&value, flag, from, least, most](const std::string& text) {
        const std::optional<double> number = ParseReal(text);
        const bool is_above =
            number && (from == LowerBound::kExclusive ? *number > least : *number >= least);
        if (!is_above || *number > most) {
          Refuse(flag, text,
                 absl::StrCat("not a number ", from == LowerBound::kExclusive ? "above " : "from ",
                              least, " to ", most));
        }
        value = *number;
      },
      description);
  return option->type_name("NUMBER");
}

absl::StatusOr<absl::Duration> ParseDurationOf(const std::string& source, const std::string& text,
                                               absl::Duration least) {
  const std::optional<absl::Duration> value = ParseFiniteDuration(text);
  if (!value.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": ", Quoted(text), " is not a duration such as 30s or 2m"));
  }
  if (*value < least) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": ", text, " is too short; at least ", absl::FormatDuration(least)));
  }
  return *value;
}

CLI::Option* AddDuration(CLI::App& app, const std::string& flag, absl::Duration& value,
                         const std::string& description, absl::Duration least) {
  CLI::Option* option = app.add_option_function<std::string>(
      flag,
      [&value, flag, least](const std::string& text) {
        const absl::StatusOr<absl::Duration> parsed = ParseDurationOf(flag, text, least);
        if (!parsed.ok()) {
          throw CLI::ValidationError(std::string(parsed.status().message()));
        }
        value = *parsed;
      },
      description);
  option->type_name("DURATION")->default_str(absl::FormatDuration(value));
  return option;
}

CLI::Option* AddHeartbeatTimeout(CLI::App& app, std::optional<absl::Duration>& value) {
  static constexpr char kFlag[] = "--heartbeat-timeout";
  return app
      .add_option_function<std::string>(
          kFlag,
          [&value](const std::string& text) {
            const absl::StatusOr<absl::Duration> parsed =
                ParseDurationOf(kFlag, text, kLeastHeartbeatTimeout);
            if (!parsed.ok()) {
              throw CLI::ValidationError(std::string(parsed.status().message()));
            }
            value = *parsed;
          },
          "for the coordinator that it starts: a process that is silent for longer is considered "
          "dead (default: 100s, or estimated for JAX clients)")
      ->type_name("DURATION");
}

absl::StatusOr<std::optional<absl::Duration>> FindHeartbeatTimeout(
    const std::optional<absl::Duration>& flag) {
  if (flag.has_value()) return flag;
  const std::optional<std::string> text = ProcessEnv(kHeartbeatTimeoutVariable);
  if (!text.has_value() || text->empty()) return std::optional<absl::Duration>();
  FERRY_ASSIGN_OR_RETURN(const absl::Duration value,
                         ParseDurationOf(kHeartbeatTimeoutVariable, *text, kLeastHeartbeatTimeout));
  return std::optional<absl::Duration>(value);
}

CLI::Option* AddLimit(CLI::App& app, const std::string& flag, size_t& value,
                      const std::string& description, uint64_t least, uint64_t most) {
  CLI::Option* option = app.add_option_function<std::string>(
      flag,
      [&value, flag, least, most](const std::string& text) {
        const std::optional<uint64_t> number = ParseCount(text, least, most);
        if (!number) Refuse(flag, text, NoWholeNumber(least, most));
        value = *number;
      },
      description);
  option->type_name("N")->default_str(std::to_string(value));
  return option;
}

void AddDeprecatedName(CLI::App& app, CLI::Option* option, const std::string& deprecated) {
  const auto set = [option](const std::string& value) {
    option->add_result(value);
    // CLI11 runs callbacks in the order of the options' definitions: that of `option` is over.
    option->run_callback();
  };
  // An empty group hides a flag from the help.
  if (option->get_items_expected_max() == 0) {
    app.add_flag_callback(deprecated, [set] { set("true"); })->group("");
  } else {
    app.add_option_function<std::string>(deprecated, set)->group("");
  }
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
