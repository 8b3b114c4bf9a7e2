// SPDX-License-Identifier: Apache-2.0
// DeferredReleaseQueue: what a peer may still have open when its control channel has ended, kept
// for a while.
#ifndef FERRY_TRANSPORT_CUDA_IPC_DEFERRED_RELEASE_QUEUE_H_
#define FERRY_TRANSPORT_CUDA_IPC_DEFERRED_RELEASE_QUEUE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "net/event_loop.h"

namespace ferry {

// A control channel that has ended says nothing of whether its peer still reads what it was
// offered, or has closed what it opened: that takes it much less than kGrace. Thread-safe. Also a
// process that leaves keeps it: the destructor does not wait, but has a thread of its own,
// "ferry-grace", let go of the rest.
class DeferredReleaseQueue final {
 public:
  static constexpr absl::Duration kGrace = absl::Seconds(2);

  //   loop: outlives this.
  explicit DeferredReleaseQueue(EventLoop& loop) : loop_(loop) {}
  ~DeferredReleaseQueue();

  DeferredReleaseQueue(const DeferredReleaseQueue&) = delete;
  DeferredReleaseQueue& operator=(const DeferredReleaseQueue&) = delete;

  //   then: runs on the loop after kGrace; not at all if this has gone by then. What it has caught
  //   is let go of in either case, and is what is kept.
  void Keep(absl::AnyInvocable<void() &&> then);

 private:
  struct Entry {
    absl::Time until;
    absl::AnyInvocable<void() &&> then;
  };
  struct State {
    absl::Mutex mu;
    uint64_t last_id ABSL_GUARDED_BY(mu) = 0;
    std::map<uint64_t, Entry> entries ABSL_GUARDED_BY(mu);
  };

  EventLoop& loop_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_DEFERRED_RELEASE_QUEUE_H_
