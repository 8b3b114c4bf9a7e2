// SPDX-License-Identifier: Apache-2.0
// The tool's stdout, and whether writes to it succeeded.
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

// Prints on stderr why this process fails, in one line and with unprintable bytes escaped: stderr
// may be a terminal or a log.
void PrintError(absl::string_view message);
// Prints it at once, for a process that has much to do before it ends. Returns `why` marked for
// IsErrorPrinted, so that it is not printed again.
absl::Status PrintErrorNow(absl::Status why);
bool IsErrorPrinted(const absl::Status& why);

// Flushes stdout. Errors: UNAVAILABLE with the reason, once any output could not be written, and on
// every later call. Thread-safe.
absl::Status FlushOutput();

// Options for the stdout of verbs that must end when asked to, even if their output is not read.
// Output appended on other threads wakes WriteWaiting; at most 256 MiB are buffered. `signals` must
// outlive it.
NonBlockingWriterOptions WakingOutput(BlockedSignals& signals);
// Blocks until stdout accepts some of the buffered output, and writes it; at most for `timeout`,
// and until BlockedSignals::Wake is called. Returns true if one of the signals was received. Ends
// the process by SIGPIPE if stdout has no reader any more.
//   Errors: as FlushOutput.
absl::StatusOr<bool> WriteWaiting(NonBlockingWriter& output, BlockedSignals& signals,
                                  absl::Duration timeout);
// Writes everything. Returns true if one of the signals was received, or nothing was read for
// `timeout`.
absl::StatusOr<bool> DrainOutput(NonBlockingWriter& output, BlockedSignals& signals,
                                 absl::Duration timeout);

// Writes a file, or to stdout if `path` is "-". Errors: UNAVAILABLE with the reason.
absl::Status WriteFile(const std::string& path, absl::string_view text);

}  // namespace ferry::cli

#endif  // FERRY_CLI_OUTPUT_H_
