// SPDX-License-Identifier: Apache-2.0
// RecentHashes: whether a hash was added lately, in little memory.
#ifndef FERRY_RENDEZVOUS_PEER_RECENT_HASHES_H_
#define FERRY_RENDEZVOUS_PEER_RECENT_HASHES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ferry {

// Remembers the last `count` to 2 * `count` hashes that were added, in four to eight bytes for each
// of `count`. A Bloom filter of two generations: of the hashes that were not added it takes a few
// per cent for some that were. Not thread-safe; copyable.
class RecentHashes final {
 public:
  // REQUIRES: count > 0.
  explicit RecentHashes(size_t count);

  // Adds `hash`. Returns true if it is remembered already.
  bool Add(uint64_t hash);

  // An encoding of the state, for the model checker's set of visited states.
  std::string State() const;

 private:
  using Generation = std::vector<uint64_t>;

  size_t count_;
  // Bits. Allocated by the first Add.
  Generation newer_;
  Generation older_;
  size_t newer_count_ = 0;
};

}  // namespace ferry

#endif  // FERRY_RENDEZVOUS_PEER_RECENT_HASHES_H_
