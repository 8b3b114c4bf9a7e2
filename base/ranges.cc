// SPDX-License-Identifier: Apache-2.0
// Compact ranges: formatting and parsing.
#include "base/ranges.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/numbers.h"

namespace ferry {
namespace {

constexpr int64_t kMost = std::numeric_limits<int>::max();

}  // namespace

std::string FormatRanges(absl::Span<const int> numbers, size_t max_bytes) {
  std::vector<int> sorted(numbers.begin(), numbers.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::string text;
  for (size_t first = 0; first < sorted.size();) {
    size_t last = first;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    std::string range = absl::StrCat(first == 0 ? "" : ",", sorted[first]);
    // A pair reads better as two numbers than as a range.
    if (last > first) absl::StrAppend(&range, last == first + 1 ? "," : "-", sorted[last]);
    if (text.size() + range.size() > max_bytes) {
      absl::StrAppend(&text, " and ", sorted.size() - first, " more");
      return text;
    }
    text += range;
    first = last + 1;
  }
  return text;
}

absl::StatusOr<std::vector<int>> ParseRanges(absl::string_view text, size_t max_count) {
  std::vector<int> numbers;
  if (text.empty()) return numbers;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    const std::optional<int64_t> first = ParseWhole(ends.first, 0, kMost);
    if (!first) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" is not a number or a range"));
    }
    const bool is_range = ends.first.size() != part.size();
    const std::optional<int64_t> last = is_range ? ParseWhole(ends.second, *first, kMost) : first;
    if (!last) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" is not a range first-last"));
    }
    if (static_cast<size_t>(*last - *first) + 1 > max_count - numbers.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" names more than ", max_count, " numbers"));
    }
    for (int64_t n = *first; n <= *last; ++n) numbers.push_back(static_cast<int>(n));
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

}  // namespace ferry
