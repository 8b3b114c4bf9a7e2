// SPDX-License-Identifier: Apache-2.0
// Futexes: their relative timeouts use the monotonic clock.
#include "base/wakeup.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/clock.h"

namespace ferry {
namespace {

long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void Wakeup::WaitUntil(uint32_t turn, absl::Time deadline) {
  const absl::Duration left = deadline - SteadyClock().Now();
  if (left <= absl::ZeroDuration()) return;
  // An hour stands for infinity: the caller loops.
  const timespec timeout = absl::ToTimespec(std::min(left, absl::Hours(1)));
  sleepers_.fetch_add(1);
  if (turn_.load() == turn) Futex(turn_, FUTEX_WAIT_PRIVATE, turn, &timeout);
  sleepers_.fetch_sub(1);
}

void Wakeup::Wake() {
  turn_.fetch_add(1);
  if (sleepers_.load() > 0) Futex(turn_, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr);
}

}  // namespace ferry
