// SPDX-License-Identifier: Apache-2.0
// Doorbell: wakes a process of this host, if it sleeps, at the price of a look at shared memory.
#ifndef FERRY_TRANSPORT_LANE_DOORBELL_H_
#define FERRY_TRANSPORT_LANE_DOORBELL_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"

#include "base/fence.h"
#include "base/unique_fd.h"
#include "tensor/memory_segment.h"

namespace ferry {

// Its owner says when it goes to sleep; whoever has put work before it rings. A page and an
// eventfd, both of which can be given to other processes. Thread-safe. Move-only.
class Doorbell final {
 public:
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<Doorbell> Create();
  // Of another process, from copies of its page_fd() and event_fd().
  //   Errors: INVALID_ARGUMENT unless they are such.
  static absl::StatusOr<Doorbell> OfPeer(UniqueFd page, UniqueFd event);

  Doorbell() = default;
  Doorbell(Doorbell&&) = default;
  Doorbell& operator=(Doorbell&&) = default;

  int page_fd() const { return page_.fd(); }
  // Readable, edge by edge, when it has been rung.
  int event_fd() const { return event_.get(); }

  // The owner: I shall sleep unless there is work already, which it has to look for after this.
  void FallAsleep() {
    asleep().store(1, std::memory_order_relaxed);
    // Either we see the work, or whoever brought it sees that we sleep.
    FullFence();
  }
  void WakeUp() { asleep().store(0, std::memory_order_relaxed); }

  // After the work has been put where the owner looks for it.
  void Ring() {
    FullFence();
    if (asleep().load(std::memory_order_relaxed) != 0 &&
        asleep().exchange(0, std::memory_order_relaxed) != 0) {
      RingAnyway();
    }
  }
  void RingAnyway();

 private:
  std::atomic<uint32_t>& asleep() { return *static_cast<std::atomic<uint32_t>*>(page_.base()); }

  MemorySegment page_;
  UniqueFd event_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_LANE_DOORBELL_H_
