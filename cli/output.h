// SPDX-License-Identifier: Apache-2.0
// The tool's stdout, and whether it took what was written.
#ifndef FERRY_CLI_OUTPUT_H_
#define FERRY_CLI_OUTPUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "base/non_blocking_writer.h"
#include "cli/signals.h"

namespace ferry::cli {

// Prints on stderr why this process fails, in one line, whatever the message holds: the rest is the
// caller's terminal or log.
void PrintError(absl::string_view message);
// Prints it at once, for a process that has much to do before it ends, and returns `why` marked for
// IsErrorPrinted, so that it is not printed again.
absl::Status PrintErrorNow(absl::Status why);
bool IsErrorPrinted(const absl::Status& why);

// Writes out what stdout holds. Errors: UNAVAILABLE with the reason, then and for ever after, once
// any of it could not be written. Thread-safe.
absl::Status FlushOutput();

// stdout of verbs that end when they are told to, whether or not anybody reads it. What is appended
// on other threads wakes WriteWaiting; no more than 256 MiB may wait. `signals` outlives it.
NonBlockingWriterOptions WakingOutput(BlockedSignals& signals);
// Waits until stdout takes something of what `output` holds, and writes it; for at most `timeout`,
// and until somebody calls BlockedSignals::Wake. True when one of the signals has come. Ends the
// process by SIGPIPE when nobody reads stdout any more.
//   Errors: as FlushOutput.
absl::StatusOr<bool> WriteWaiting(NonBlockingWriter& output, BlockedSignals& signals,
                                  absl::Duration timeout);
// Writes everything. True when one of the signals has come, or nobody has read any of it for
// `timeout`.
absl::StatusOr<bool> DrainOutput(NonBlockingWriter& output, BlockedSignals& signals,
                                 absl::Duration timeout);

// Writes a file, or to stdout if `path` is "-". Errors: UNAVAILABLE with the reason.
absl::Status WriteFile(const std::string& path, absl::string_view text);

}  // namespace ferry::cli

#endif  // FERRY_CLI_OUTPUT_H_
