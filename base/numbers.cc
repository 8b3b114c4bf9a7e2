// SPDX-License-Identifier: Apache-2.0
// Checks the characters of a number before Abseil parses it.
#include "base/numbers.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace ferry {
namespace {

bool IsDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

}  // namespace

std::optional<int64_t> ParseWhole(absl::string_view text, int64_t least, int64_t most) {
  absl::string_view digits = text;
  absl::ConsumePrefix(&digits, "-");
  int64_t number = 0;
  if (!IsDigits(digits) || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  if (number < least || number > most) return std::nullopt;
  return number;
}

std::optional<uint64_t> ParseCount(absl::string_view text, uint64_t least, uint64_t most) {
  uint64_t number = 0;
  if (!IsDigits(text) || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  if (number < least || number > most) return std::nullopt;
  return number;
}

std::optional<double> ParseReal(absl::string_view text) {
  constexpr absl::string_view kOthers = "+-.eE";
  const bool is_plain = std::all_of(text.begin(), text.end(), [kOthers](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || absl::StrContains(kOthers, c);
  });
  double number = 0;
  if (!is_plain || absl::StartsWith(text, "+") || !absl::SimpleAtod(text, &number)) {
    return std::nullopt;
  }
  if (!std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<absl::Duration> ParseFiniteDuration(absl::string_view text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c == '.' || absl::ascii_isalnum(static_cast<unsigned char>(c));
  });
  absl::Duration duration;
  if (!is_plain || !absl::ParseDuration(std::string(text), &duration)) return std::nullopt;
  if (duration < absl::ZeroDuration() || duration == absl::InfiniteDuration()) return std::nullopt;
  return duration;
}

}  // namespace ferry
