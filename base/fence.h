// SPDX-License-Identifier: Apache-2.0
// FullFence: orders a store before a later load (Dekker's pattern).
#ifndef FERRY_BASE_FENCE_H_
#define FERRY_BASE_FENCE_H_

#include <atomic>

namespace ferry {

// One side stores its work, then loads the sleeper's flag; the other stores the flag, then looks
// for work. With this fence between the two, at least one side sees the other's store.
inline void FullFence() {
#if defined(__SANITIZE_THREAD__)
  // GCC's ThreadSanitizer does not support fences.
  static std::atomic<int> common{0};
  common.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace ferry

#endif  // FERRY_BASE_FENCE_H_
