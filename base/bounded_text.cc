// SPDX-License-Identifier: Apache-2.0
// Cutting names and lists of names.
#include "base/bounded_text.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ferry {

std::string BoundedName(absl::string_view name, size_t max_bytes) {
  if (name.size() <= max_bytes) return absl::CEscape(name);
  const size_t half = max_bytes / 2;
  return absl::StrCat(absl::CEscape(name.substr(0, half)), "...",
                      absl::CEscape(name.substr(name.size() - half)), " (", name.size(), " bytes)");
}

std::string BoundedList(absl::Span<const std::string> names, size_t most, size_t count,
                        absl::string_view separator) {
  const absl::Span<const std::string> shown = names.subspan(0, most);
  return absl::StrCat(
      absl::StrJoin(shown, separator),
      count > shown.size() ? absl::StrCat(" and ", count - shown.size(), " more") : "");
}

std::string BoundedList(absl::Span<const std::string> names, size_t most,
                        absl::string_view separator) {
  return BoundedList(names, most, names.size(), separator);
}

}  // namespace ferry
