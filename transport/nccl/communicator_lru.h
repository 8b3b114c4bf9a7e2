// SPDX-License-Identifier: Apache-2.0
// CommunicatorLru: decides which communicators of keyed transfers to evict.
#ifndef FERRY_TRANSPORT_NCCL_COMMUNICATOR_LRU_H_
#define FERRY_TRANSPORT_NCCL_COMMUNICATOR_LRU_H_

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ferry {

// Communicators between pairs of GPUs that the NCCL transport has open on one device (NcclDevice),
// by the prefixes of their keys. Holds no communicator itself. Those of programs are in
// node/communicator_cache.h, those of graphs' collectives in
// tensorflow/worker/collectives/collective_communicators.h. Creating a communicator takes seconds,
// and keeping it takes device memory: the least recently used are evicted. Bookkeeping only; not
// thread-safe.
class CommunicatorLru final {
 public:
  explicit CommunicatorLru(uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  // Reserves `bytes` for a new entry, with a use count of one. Returns the entries to end first, in
  // that order; they have been removed from the cache.
  //   Errors: RESOURCE_EXHAUSTED naming the option, without any change: the entries in use leave no
  //   room. ALREADY_EXISTS.
  absl::StatusOr<std::vector<std::string>> Reserve(absl::string_view key, uint64_t bytes);
  // Increments the use count; returns false if there is no such entry.
  bool Use(absl::string_view key);
  // Decrements the use count; at zero the entry becomes the most recently used idle one. REQUIRES:
  // Use or Reserve before.
  void Unuse(absl::string_view key);
  // For an entry that could not be created, or is broken.
  void Remove(absl::string_view key);
  // Sets the measured size. It may exceed the budget; the next Reserve makes up for it.
  void Resize(absl::string_view key, uint64_t bytes);

  uint64_t used_bytes() const { return used_bytes_; }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t bytes = 0;
    int use_count = 0;
    // Position in idle_, if not in use.
    std::list<std::string>::iterator idle;
  };

  const uint64_t budget_bytes_;
  uint64_t used_bytes_ = 0;
  absl::flat_hash_map<std::string, Entry> entries_;
  // Least recently used first.
  std::list<std::string> idle_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_COMMUNICATOR_LRU_H_
