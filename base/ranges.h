// SPDX-License-Identifier: Apache-2.0
// Sets of small numbers as people write them: "3-6,17".
#ifndef FERRY_BASE_RANGES_H_
#define FERRY_BASE_RANGES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry {

// Renders `numbers` (any order, repeats allowed) as ascending ranges joined by commas.
// At most `max_bytes` long: what does not fit is counted, as in "0,2,4 and 17 more".
std::string FormatRanges(absl::Span<const int> numbers, size_t max_bytes = 1024);

// Reads what FormatRanges writes (without "and N more"); ascending and without repeats.
//   Errors: INVALID_ARGUMENT for anything else, or for more than `max_count` numbers.
absl::StatusOr<std::vector<int>> ParseRanges(absl::string_view text, size_t max_count = 1 << 20);

}  // namespace ferry

#endif  // FERRY_BASE_RANGES_H_
