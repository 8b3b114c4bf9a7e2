// SPDX-License-Identifier: Apache-2.0
// Doorbell: wakes another process of this host only if it sleeps; otherwise costs one
// shared-memory read.
#ifndef FERRY_NET_DOORBELL_H_
#define FERRY_NET_DOORBELL_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"

#include "base/fence.h"
#include "base/unique_fd.h"
#include "tensor/memory_segment.h"

namespace ferry {

// The owner publishes when it goes to sleep; a producer that has queued work for it rings. In the
// polling state between the two, the owner polls periodically and is left alone unless a peer is
// about to block. Consists of a page and an eventfd, both of which can be passed to other
// processes. Thread-safe. Move-only.
class Doorbell final {
 public:
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<Doorbell> Create();
  // Opens another process's doorbell from duplicates of its page_fd() and event_fd().
  //   Errors: INVALID_ARGUMENT unless they are such.
  static absl::StatusOr<Doorbell> OfPeer(UniqueFd page, UniqueFd event);

  Doorbell() = default;
  Doorbell(Doorbell&&) = default;
  Doorbell& operator=(Doorbell&&) = default;

  // -1 where MemorySegment::CheckSupport fails: then only threads of this process can ring.
  int page_fd() const { return page_.fd(); }
  // Readable (edge-triggered) after a ring.
  int event_fd() const { return event_.get(); }

  // Called by the owner before it sleeps. It must look for work once more after this call.
  void FallAsleep() {
    state().store(kAsleep, std::memory_order_relaxed);
    // Either the owner sees the work, or the producer sees that the owner sleeps.
    FullFence();
  }
  // Called by the owner when it will poll soon in any case. Earlier rings count as handled.
  void EnterPolling() { state().store(kPolling, std::memory_order_relaxed); }
  void EnterPollingIfAwake() {
    uint32_t is = kAwake;
    state().compare_exchange_strong(is, kPolling, std::memory_order_relaxed);
  }
  bool is_polling() { return state().load(std::memory_order_relaxed) == kPolling; }
  void WakeUp() { state().store(kAwake, std::memory_order_relaxed); }

  // Called after the work has been queued where the owner polls.
  void Ring() {
    FullFence();
    RingAfterFence();
  }
  // As Ring, for a thread that has passed a full fence since the work was queued.
  void RingAfterFence() { RingIf(kAsleep); }
  // As Ring, but also wakes an owner that polls periodically.
  void Notify() {
    FullFence();
    RingIf(kAsleep);
    RingIf(kPolling);
  }
  void RingAnyway();

 private:
  // The states, as stored in the page.
  static constexpr uint32_t kAwake = 0;
  static constexpr uint32_t kAsleep = 1;
  static constexpr uint32_t kPolling = 2;

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
