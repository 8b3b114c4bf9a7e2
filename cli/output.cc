// SPDX-License-Identifier: Apache-2.0
// Remembers why stdout failed, which stdio does not.
#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

// Payload that marks a status returned by PrintErrorNow.
constexpr char kErrorPrinted[] = "ferry/error-printed";

constexpr size_t kMaxWaitingBytes = size_t{256} << 20;
// Signals are checked after each such chunk.
constexpr size_t kWriteBytes = size_t{64} << 10;

// `error`: errno, or 0 if unknown.
absl::Status CannotWrite(int error) {
  return absl::UnavailableError(absl::StrCat(
      "cannot write the output", error != 0 ? absl::StrCat(": ", std::strerror(error)) : ""));
}

// errno of the first observed failure.
std::atomic<int> first_error{0};

}  // namespace

void PrintError(absl::string_view message) {
  std::fflush(stdout);
  std::fprintf(stderr, "ferry: %s\n",
               Printable(absl::StrReplaceAll(message, {{"\n", "; "}})).c_str());
}

absl::Status PrintErrorNow(absl::Status why) {
  PrintError(Printable(why.message()));
  why.SetPayload(kErrorPrinted, absl::Cord());
  return why;
}

bool IsErrorPrinted(const absl::Status& why) { return why.GetPayload(kErrorPrinted).has_value(); }

absl::Status FlushOutput() {
  const int error = std::fflush(stdout) == 0 ? 0 : errno;
  int none = 0;
  if (error != 0) first_error.compare_exchange_strong(none, error);
  // A write larger than stdio's buffer may have failed earlier, and its errno is lost.
  if (error == 0 && first_error == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return CannotWrite(first_error);
}

NonBlockingWriterOptions WakingOutput(BlockedSignals& signals) {
  return {.max_waiting_bytes = kMaxWaitingBytes, .on_waiting = [&signals] { signals.Wake(); }};
}

absl::StatusOr<bool> WriteWaiting(NonBlockingWriter& output, BlockedSignals& signals,
                                  absl::Duration timeout) {
  const bool is_idle = output.waiting() == 0;
  if (signals.WaitFor(timeout, output.fd(), /*only_loss=*/is_idle)) return true;
  const int error = is_idle ? output.FindLoss() : output.Flush(kWriteBytes);
  if (error == 0) return false;
  // Also if the reader has gone while there was nothing to write: `kv watch | head -1`.
  if (error == EPIPE) std::raise(SIGPIPE);
  return CannotWrite(error);
}

absl::StatusOr<bool> DrainOutput(NonBlockingWriter& output, BlockedSignals& signals,
                                 absl::Duration timeout) {
  absl::Time until = SteadyClock().Now() + timeout;
  for (size_t before = output.waiting(); before > 0;) {
    const absl::Duration left = until - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) return true;
    FERRY_ASSIGN_OR_RETURN(const bool is_interrupted, WriteWaiting(output, signals, left));
    if (is_interrupted) return true;
    const size_t after = output.waiting();
    if (after < before) until = SteadyClock().Now() + timeout;
    before = after;
  }
  return false;
}

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "we");
  bool is_written = file != nullptr;
  if (is_written) is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (is_written) is_written = std::fflush(file) == 0;
  const int error = errno;
  if (file != nullptr && file != stdout) std::fclose(file);
  if (is_written) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write ", Quoted(path), ": ", std::strerror(error)));
}

}  // namespace ferry::cli
