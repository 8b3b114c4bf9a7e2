// SPDX-License-Identifier: Apache-2.0
// What every verb of the ferry tool has in common.
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

// Exit statuses: 0 done; 1 failed, with one line on stderr; 2 the command line is wrong.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// Runs a verb whose flags have been read; returns the exit status. INVALID_ARGUMENT counts as
// usage.
using Verb = std::function<absl::StatusOr<int>()>;

// For what is no matter of usage, such as the contents of a file or a limit of the coordinator:
// INVALID_ARGUMENT would be taken for that.
absl::Status AsFailure(const absl::Status& status);

// Each adds its subcommand to `app` and returns what runs it.
Verb AddCoordinatorVerb(CLI::App& app);
Verb AddWorkerVerb(CLI::App& app);
// after_dashes: what stands behind the first "--", with it, and was not parsed.
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

// Flags that take numbers. All of them read with base/numbers.h: CLI11's own conversions take "nan"
// for a number, "0x10" for 16, "010" for 8 and the nearest one for what is beyond the range. Each
// shows its default in the help, unless that is no value (an empty std::optional).
//   Values outside of [least, most], and what is no number, are refused naming the flag.

CLI::Option* AddNumber(CLI::App& app, const std::string& flag, int& value,
                       const std::string& description, int least, int most);
CLI::Option* AddNumber(CLI::App& app, const std::string& flag, std::optional<int>& value,
                       const std::string& description, int least, int most);
CLI::Option* AddNumber(CLI::App& app, const std::string& flag, int64_t& value,
                       const std::string& description,
                       int64_t least = std::numeric_limits<int64_t>::min(),
                       int64_t most = std::numeric_limits<int64_t>::max());

// A flag for a limit or another count, from `least` on.
CLI::Option* AddLimit(CLI::App& app, const std::string& flag, size_t& value,
                      const std::string& description, uint64_t least = 1,
                      uint64_t most = std::numeric_limits<uint64_t>::max());

// A flag that takes a finite number. kAbove: `least` itself is refused too.
enum class RealLeast { kFrom, kAbove };
CLI::Option* AddReal(CLI::App& app, const std::string& flag, double& value,
                     const std::string& description, RealLeast from, double least, double most);

// A flag that takes a duration as absl::ParseDuration reads it: "30s", "2m", "1h30m", "250ms".
//   least: shorter ones are refused.
CLI::Option* AddDuration(CLI::App& app, const std::string& flag, absl::Duration& value,
                         const std::string& description,
                         absl::Duration least = absl::ZeroDuration());

// A duration as AddDuration reads it, from an environment variable or a flag.
//   Errors: INVALID_ARGUMENT naming `source`.
absl::StatusOr<absl::Duration> ParseDurationOf(const std::string& source, const std::string& text,
                                               absl::Duration least = absl::ZeroDuration());

// With shorter timeouts a process that was merely not scheduled for a moment counts as dead.
inline constexpr absl::Duration kLeastHeartbeatTimeout = absl::Milliseconds(100);
// The flag --heartbeat-timeout of verbs that may start a coordinator.
CLI::Option* AddHeartbeatTimeout(CLI::App& app, std::optional<absl::Duration>& value);
// Its value, else that of the environment variable FERRY_HEARTBEAT_TIMEOUT, if there is one.
//   Errors: INVALID_ARGUMENT.
absl::StatusOr<std::optional<absl::Duration>> FindHeartbeatTimeout(
    const std::optional<absl::Duration>& flag);

// Whether `text` can be HOST:PORT of somebody to connect to. No CLI::Validator, because those run
// for the flags of all verbs when the environment sets them.
//   Errors: INVALID_ARGUMENT naming `flag`.
absl::Status CheckAddress(absl::string_view flag, absl::string_view text);

// The flag --coordinator=HOST:PORT; its default is the environment variable FERRY_COORDINATOR.
CLI::Option* AddCoordinatorFlag(CLI::App& app, std::string& address);

}  // namespace ferry::cli

#endif  // FERRY_CLI_VERB_H_
