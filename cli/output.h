// SPDX-License-Identifier: Apache-2.0
// The tool's stdout, and whether it took what was written.
#ifndef FERRY_CLI_OUTPUT_H_
#define FERRY_CLI_OUTPUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ferry::cli {

// Gives the descriptors 0 to 2 that are closed something that fails every read or write. Else a
// socket of ours would get such a number, and what is printed would go over it. Call it first of
// all.
void ReserveStandardStreams();

// Writes out what stdout holds. Errors: UNAVAILABLE with the reason, then and for ever after, once
// any of it could not be written. Thread-safe.
absl::Status FlushOutput();

// Writes a file, or to stdout if `path` is "-". Errors: UNAVAILABLE with the reason.
absl::Status WriteFile(const std::string& path, absl::string_view text);

}  // namespace ferry::cli

#endif  // FERRY_CLI_OUTPUT_H_
