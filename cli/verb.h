// SPDX-License-Identifier: Apache-2.0
// Declarations shared by all verbs of the ferry tool.
#ifndef FERRY_CLI_VERB_H_
#define FERRY_CLI_VERB_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry::cli {

// Exit statuses: 0 done; 1 failed, with one line on stderr; 2 usage error.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// Runs a verb whose flags have been parsed; returns the exit status. INVALID_ARGUMENT counts as a
// usage error.
using Verb = std::function<absl::StatusOr<int>()>;

// Converts an error that is not a usage error, such as one in a file's content or a limit of the
// coordinator, so that INVALID_ARGUMENT is not taken for one.
absl::Status AsFailure(const absl::Status& status);

// Each adds its subcommand to `app` and returns the function that runs it.
Verb AddCoordinatorVerb(CLI::App& app);
Verb AddWorkerVerb(CLI::App& app);
// after_dashes: the unparsed arguments from the first "--" on.
Verb AddRunVerb(CLI::App& app, std::vector<std::string> after_dashes);
Verb AddDemoVerb(CLI::App& app);
Verb AddStatusVerb(CLI::App& app);
Verb AddResetVerb(CLI::App& app);
Verb AddKvVerb(CLI::App& app);
Verb AddTopoVerb(CLI::App& app);
Verb AddDoctorVerb(CLI::App& app);
Verb AddSendVerb(CLI::App& app);
Verb AddRecvVerb(CLI::App& app);
Verb AddBenchVerb(CLI::App& app);
Verb AddStepVerb(CLI::App& app);
Verb AddTraceVerb(CLI::App& app);
Verb AddDemoWorkerVerb(CLI::App& app);
Verb AddBenchWorkerVerb(CLI::App& app);
Verb AddBenchFloorVerb(CLI::App& app);
Verb AddDoctorHelperVerb(CLI::App& app);

// Numeric flags. All are parsed with base/numbers.h: CLI11's own conversions accept "nan", "0x10"
// as 16 and "010" as 8, and clamp out-of-range values. Each shows its default in the help, unless
// it has none (an empty std::optional).
//   Values outside [least, most] and malformed ones are rejected, naming the flag.

CLI::Option* AddNumber(CLI::App& app, const std::string& flag, int& value,
                       const std::string& description, int least, int most);
CLI::Option* AddNumber(CLI::App& app, const std::string& flag, std::optional<int>& value,
                       const std::string& description, int least, int most);
CLI::Option* AddNumber(CLI::App& app, const std::string& flag, int64_t& value,
                       const std::string& description,
                       int64_t least = std::numeric_limits<int64_t>::min(),
                       int64_t most = std::numeric_limits<int64_t>::max());

// A flag for a limit or another count, at least `least`.
CLI::Option* AddLimit(CLI::App& app, const std::string& flag, size_t& value,
                      const std::string& description, uint64_t least = 1,
                      uint64_t most = std::numeric_limits<uint64_t>::max());

// A flag for a finite number. kAbove: `least` itself is rejected too.
enum class LowerBound { kInclusive, kExclusive };
CLI::Option* AddReal(CLI::App& app, const std::string& flag, double& value,
                     const std::string& description, LowerBound from, double least, double most);

// Adds the hidden flag `deprecated`, the former name of `option` (of the same app), which it sets.
// Errors about its value name `option`.
void AddDeprecatedName(CLI::App& app, CLI::Option* option, const std::string& deprecated);

// A flag for a duration in absl::ParseDuration's format: "30s", "2m", "1h30m", "250ms".
//   least: shorter durations are rejected.
CLI::Option* AddDuration(CLI::App& app, const std::string& flag, absl::Duration& value,
                         const std::string& description,
                         absl::Duration least = absl::ZeroDuration());

// Parses a duration as AddDuration does, from an environment variable or a flag.
//   Errors: INVALID_ARGUMENT naming `source`.
absl::StatusOr<absl::Duration> ParseDurationOf(const std::string& source, const std::string& text,
                                               absl::Duration least = absl::ZeroDuration());

// With shorter timeouts a process that was briefly not scheduled is declared dead.
inline constexpr absl::Duration kLeastHeartbeatTimeout = absl::Milliseconds(100);
// The flag --heartbeat-timeout of verbs that may start a coordinator.
CLI::Option* AddHeartbeatTimeout(CLI::App& app, std::optional<absl::Duration>& value);
// Returns its value, else that of the environment variable FERRY_HEARTBEAT_TIMEOUT, if set.
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<std::optional<absl::Duration>> FindHeartbeatTimeout(
    const std::optional<absl::Duration>& flag);

// Checks that `text` can be a HOST:PORT to connect to. Not a CLI::Validator, because those run for
// the flags of all verbs when the environment sets them.
//   Errors: INVALID_ARGUMENT naming `flag`.
absl::Status CheckAddress(absl::string_view flag, absl::string_view text);

// The flag --coordinator=HOST:PORT; defaults to the environment variable FERRY_COORDINATOR.
CLI::Option* AddCoordinatorFlag(CLI::App& app, std::string& address);

}  // namespace ferry::cli

#endif  // FERRY_CLI_VERB_H_
