// SPDX-License-Identifier: Apache-2.0
// Wakeup: a thread's sleep until a time of the steady clock, which others can end.
#ifndef FERRY_BASE_WAKEUP_H_
#define FERRY_BASE_WAKEUP_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace ferry {

// Thread-safe. For threads that keep others' time: absl::CondVar counts by the clock on the wall,
// and sleeps on for as long as that is set back.
class Wakeup final {
 public:
  // Of what Wake has been called; taken before looking whether there is something to do.
  uint32_t turn() const { return turn_.load(std::memory_order_acquire); }
  // Returns when Wake has been called since `turn` was taken, at `deadline` (of SteadyClock), or
  // earlier.
  void WaitUntil(uint32_t turn, absl::Time deadline);
  void Wake();

 private:
  std::atomic<uint32_t> turn_{0};
  std::atomic<int> sleepers_{0};
};

}  // namespace ferry

#endif  // FERRY_BASE_WAKEUP_H_
