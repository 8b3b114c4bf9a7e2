// SPDX-License-Identifier: Apache-2.0
// TableSizes: the number of entries in an object's internal tables, for tests that check for leaks.
#ifndef FERRY_BASE_TABLE_SIZES_H_
#define FERRY_BASE_TABLE_SIZES_H_

#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ferry {

// Entries by the table's name, such as "store.waits". Objects that must remove what they insert
// provide one, for tests and debugging; the names are not stable.
using TableSizes = std::map<std::string, size_t>;

// "barriers.open 2, store.waits 1": the non-empty tables, except those whose name begins with one
// of `but`. Empty if there are none.
inline std::string NonEmptyTables(const TableSizes& sizes,
                                  std::initializer_list<absl::string_view> but = {}) {
  std::string text;
  for (const auto& [name, size] : sizes) {
    bool is_excepted = size == 0;
    for (const absl::string_view prefix : but) is_excepted |= absl::StartsWith(name, prefix);
    if (is_excepted) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", size);
  }
  return text;
}

}  // namespace ferry

#endif  // FERRY_BASE_TABLE_SIZES_H_
