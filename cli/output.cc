// SPDX-License-Identifier: Apache-2.0
// Remembering why stdout failed, which stdio does not.
#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "base/text.h"
#include "runtime/printable.h"

namespace ferry::cli {
namespace {

// Marks a status that PrintErrorNow has returned.
constexpr char kErrorPrinted[] = "ferry/error-printed";

// errno of the first failure that was seen.
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
  // A write that was longer than stdio's buffer may have failed before, and its reason is gone.
  if (error == 0 && first_error == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  const int reason = first_error;
  return absl::UnavailableError(absl::StrCat(
      "cannot write the output", reason != 0 ? absl::StrCat(": ", std::strerror(reason)) : ""));
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
