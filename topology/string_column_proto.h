// SPDX-License-Identifier: Apache-2.0
// Lists of strings packed by shared prefixes and as raw UUIDs, for the global topology.
#ifndef FERRY_TOPOLOGY_STRING_COLUMN_PROTO_H_
#define FERRY_TOPOLOGY_STRING_COLUMN_PROTO_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "proto/ferry_topology.pb.h"

namespace ferry {

// Packs `strings`; Unpack gives them back. Equal lists give equal messages.
v1::StringColumn PackStrings(absl::Span<const std::string> strings);

// Unpacks a column of `count` strings called `name` in errors.
//   max_bytes: the longest string allowed.
//   Errors: INVALID_ARGUMENT if the column does not hold exactly `count` strings or is
//   inconsistent.
absl::StatusOr<std::vector<std::string>> UnpackStrings(const v1::StringColumn& column, size_t count,
                                                       size_t max_bytes, absl::string_view name);

}  // namespace ferry

#endif  // FERRY_TOPOLOGY_STRING_COLUMN_PROTO_H_
