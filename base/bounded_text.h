// SPDX-License-Identifier: Apache-2.0
// Names and lists of names in messages, which stay readable however many or long they are.
#ifndef FERRY_BASE_BOUNDED_TEXT_H_
#define FERRY_BASE_BOUNDED_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ferry {

// `name` escaped for a terminal or an error message, like Quoted but without quotes: at most about
// `max_bytes` long. Longer ones keep both ends and say how long they are.
std::string BoundedName(absl::string_view name, size_t max_bytes = 400);

// Returns "a, b, c and 5 more": at most the first `most` of `count` names.
//   names: all of them, or at least the first `most`.
std::string BoundedList(absl::Span<const std::string> names, size_t most, size_t count,
                        absl::string_view separator = ", ");
// The same for all `names`.
std::string BoundedList(absl::Span<const std::string> names, size_t most,
                        absl::string_view separator = ", ");

}  // namespace ferry

#endif  // FERRY_BASE_BOUNDED_TEXT_H_
