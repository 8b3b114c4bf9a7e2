// SPDX-License-Identifier: Apache-2.0
// Doorbell: wakes a process of this host, if it sleeps, at the price of a look at shared memory.
#ifndef FERRY_NET_DOORBELL_H_
#define FERRY_NET_DOORBELL_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"

#include "base/fence.h"
#include "base/unique_fd.h"
#include "tensor/memory_segment.h"

namespace ferry {

// Its owner says when it goes to sleep; whoever has put work before it rings. In between there is
// dozing: the owner looks now and then, and is left alone unless somebody has nothing to do but
// wait for it. A page and an eventfd, both of which can be given to other processes. Thread-safe.
// Move-only.
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

  // -1 where MemorySegment::CheckSupport fails: then only threads of this process ring.
  int page_fd() const { return page_.fd(); }
  // Readable, edge by edge, when it has been rung.
  int event_fd() const { return event_.get(); }

  // The owner: I shall sleep unless there is work already, which it has to look for after this.
  void FallAsleep() {
    state().store(kAsleep, std::memory_order_relaxed);
    // Either we see the work, or whoever brought it sees that we sleep.
    FullFence();
  }
  // The owner: I shall look soon, whether there is work or not. What was rung before is done.
  void Doze() { state().store(kDozing, std::memory_order_relaxed); }
  void DozeIfAwake() {
    uint32_t is = kAwake;
    state().compare_exchange_strong(is, kDozing, std::memory_order_relaxed);
  }
  bool is_dozing() { return state().load(std::memory_order_relaxed) == kDozing; }
  void WakeUp() { state().store(kAwake, std::memory_order_relaxed); }

  // After the work has been put where the owner looks for it.
  void Ring() {
    FullFence();
    RingIf(kAsleep);
  }
  // The same, also if the owner dozes.
  void Rouse() {
    FullFence();
    RingIf(kAsleep);
    RingIf(kDozing);
  }
  void RingAnyway();

 private:
  // In the page.
  static constexpr uint32_t kAwake = 0;
  static constexpr uint32_t kAsleep = 1;
  static constexpr uint32_t kDozing = 2;

  std::atomic<uint32_t>& state() { return *static_cast<std::atomic<uint32_t>*>(page_.base()); }
  void RingIf(uint32_t is) {
    if (state().load(std::memory_order_relaxed) == is &&
        state().compare_exchange_strong(is, kAwake, std::memory_order_relaxed)) {
      RingAnyway();
    }
  }

  MemorySegment page_;
  UniqueFd event_;
};

}  // namespace ferry

#endif  // FERRY_NET_DOORBELL_H_
