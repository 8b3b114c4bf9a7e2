// SPDX-License-Identifier: Apache-2.0
// Wakeup: lets a thread sleep until a steady-clock deadline or until another thread wakes it.
#ifndef FERRY_BASE_WAKEUP_H_
#define FERRY_BASE_WAKEUP_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace ferry {

// Thread-safe. For timer threads: absl::CondVar uses the wall clock, and sleeps longer when that
// is set back.
class Wakeup final {
 public:
  // The number of Wake calls; read it before checking for work.
  uint32_t turn() const { return turn_.load(std::memory_order_acquire); }
  // Returns when Wake has been called since `turn` was read, at `deadline` (of SteadyClock), or
  // spuriously earlier.
  void WaitUntil(uint32_t turn, absl::Time deadline);
  void Wake();

 private:
  std::atomic<uint32_t> turn_{0};
  std::atomic<int> sleepers_{0};
};

}  // namespace ferry

#endif  // FERRY_BASE_WAKEUP_H_
