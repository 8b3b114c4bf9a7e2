// SPDX-License-Identifier: Apache-2.0
// PutPool: the blocks of a GPU's window for puts; does not touch memory.
#ifndef FERRY_TRANSPORT_NCCL_PUT_POOL_H_
#define FERRY_TRANSPORT_NCCL_PUT_POOL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"

namespace ferry {

// Blocks of any size in a range of fixed size, by first fit, so that neighbours that are free
// become one. Not thread-safe; a value.
class PutPool final {
 public:
  static constexpr uint64_t kAlignment = 512;

  // 0 bytes: has never room.
  explicit PutPool(uint64_t bytes = 0);

  // The offset of a block of at least `bytes`; nothing: there is no room.
  std::optional<uint64_t> Take(uint64_t bytes);
  // Whether Take would find one.
  bool HasRoom(uint64_t bytes) const;
  // REQUIRES: `offset` is from Take, and not given back.
  void Give(uint64_t offset);
  // It is never used again. Returns its size. REQUIRES: as Give.
  uint64_t Retire(uint64_t offset);

  uint64_t bytes() const { return bytes_; }
  // With those that are retired.
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t retired_bytes() const { return retired_bytes_; }
  size_t block_count() const { return taken_.size(); }
  bool IsTaken(uint64_t offset) const { return taken_.contains(offset); }

  template <typename H>
  friend H AbslHashValue(H state, const PutPool& pool) {
    return H::combine(std::move(state), pool.taken_, pool.retired_bytes_);
  }

 private:
  static uint64_t Rounded(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  uint64_t bytes_;
  uint64_t used_bytes_ = 0;
  uint64_t retired_bytes_ = 0;
  // By offset, with their sizes.
  absl::btree_map<uint64_t, uint64_t> taken_;
  absl::btree_map<uint64_t, uint64_t> free_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_PUT_POOL_H_
