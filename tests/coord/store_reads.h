// SPDX-License-Identifier: Apache-2.0
// Reads of the store that its tests share.
#ifndef FERRY_TESTS_COORD_STORE_READS_H_
#define FERRY_TESTS_COORD_STORE_READS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {

inline std::string ValueOf(TestJob& job, absl::string_view key) {
  const std::optional<StoreEntry> entry = job.store().Find(key);
  return entry.has_value() ? *entry->value : "(absent)";
}

inline std::vector<std::string> KeysOf(const std::vector<StoreEntry>& entries) {
  std::vector<std::string> keys;
  for (const StoreEntry& entry : entries) keys.push_back(entry.key);
  return keys;
}

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_STORE_READS_H_
