// SPDX-License-Identifier: Apache-2.0
// CliqueCache: which communicators to keep within a budget of device memory.
#ifndef FERRY_GPU_CLIQUE_CLIQUE_CACHE_H_
#define FERRY_GPU_CLIQUE_CLIQUE_CACHE_H_

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

// Of one device, by the prefixes of their keys. Making a communicator takes seconds and keeping one
// takes device memory for as long as it lives: those that were used longest ago make room. Only
// counts; not thread-safe.
class CliqueCache final {
 public:
  explicit CliqueCache(uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  // Takes `bytes` for a new one, which is then in use once. Returns those that have to go first, in
  // that order; they are out of the cache.
  //   Errors: RESOURCE_EXHAUSTED naming the option, and nothing has changed: those in use leave no
  //   room. ALREADY_EXISTS.
  absl::StatusOr<std::vector<std::string>> Reserve(absl::string_view key, uint64_t bytes);
  // It is used once more; false: it is not here.
  bool Use(absl::string_view key);
  // REQUIRES: Use or Reserve before. Nobody is idle longer now.
  void Unuse(absl::string_view key);
  // It was not made, or is broken.
  void Remove(absl::string_view key);
  // What it turned out to take. It may exceed the budget; the next Reserve makes up for it.
  void Resize(absl::string_view key, uint64_t bytes);

  uint64_t used_bytes() const { return used_bytes_; }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t bytes = 0;
    int use_count = 0;
    // In idle_, if it is not in use.
    std::list<std::string>::iterator idle;
  };

  const uint64_t budget_bytes_;
  uint64_t used_bytes_ = 0;
  absl::flat_hash_map<std::string, Entry> entries_;
  // Longest idle first.
  std::list<std::string> idle_;
};

}  // namespace ferry

#endif  // FERRY_GPU_CLIQUE_CLIQUE_CACHE_H_
