// SPDX-License-Identifier: Apache-2.0
// Strict parsing of the numbers on command lines and in lists.
#ifndef FERRY_BASE_NUMBERS_H_
#define FERRY_BASE_NUMBERS_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry {

// Each parses all of `text` or returns nullopt. None accepts blanks, a plus sign, hexadecimal
// digits, an empty text or trailing characters, which Abseil's and CLI11's own conversions partly
// do: a limit of "nan" would never be exceeded, and "0x10" would be 0 to one of them and 16 to the
// other.

// "-12": decimal digits. nullopt outside of [least, most].
std::optional<int64_t> ParseWhole(absl::string_view text,
                                  int64_t least = std::numeric_limits<int64_t>::min(),
                                  int64_t most = std::numeric_limits<int64_t>::max());

// As ParseWhole, up to 2^64-1, without a sign.
std::optional<uint64_t> ParseCount(absl::string_view text, uint64_t least = 0,
                                   uint64_t most = std::numeric_limits<uint64_t>::max());

// "12", "0.5", "1e-3": a finite double. Neither "nan" nor "inf", nor a value that overflows, such
// as "1e999".
std::optional<double> ParseReal(absl::string_view text);

// "30s", "1h30m", "250ms", "0": as absl::ParseDuration, finite and not negative.
std::optional<absl::Duration> ParseFiniteDuration(absl::string_view text);

}  // namespace ferry

#endif  // FERRY_BASE_NUMBERS_H_
