// SPDX-License-Identifier: Apache-2.0
// FullFence: orders a store before a later load, where neither side may miss the other.
#ifndef FERRY_BASE_FENCE_H_
#define FERRY_BASE_FENCE_H_

#include <atomic>

namespace ferry {

// "I have written; now I look whether you sleep", and "I have said that I sleep; now I look whether
// you have written": with this between, at least one of the two sees the other.
inline void FullFence() {
#if defined(__SANITIZE_THREAD__)
  // GCC's ThreadSanitizer knows no fences.
  static std::atomic<int> common{0};
  common.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace ferry

#endif  // FERRY_BASE_FENCE_H_
