// SPDX-License-Identifier: Apache-2.0
// DeferredReleaseQueue: keeps memory that a peer may still have open after its control channel has
// closed.
#ifndef FERRY_TRANSPORT_CUDA_IPC_DEFERRED_RELEASE_QUEUE_H_
#define FERRY_TRANSPORT_CUDA_IPC_DEFERRED_RELEASE_QUEUE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "net/loop.h"

namespace ferry {

// A closed control channel does not tell whether its peer still reads exposed memory, or has closed
// what it opened; a peer needs much less than kGrace for that. Thread-safe. A process that is
// leaving keeps it too: the destructor does not block, but hands the rest to a thread of its own,
// "ferry-grace", for kGrace.
class DeferredReleaseQueue final {
 public:
  static constexpr absl::Duration kGrace = absl::Seconds(2);

  //   loop: outlives this.
  explicit DeferredReleaseQueue(Loop& loop) : state_(std::make_shared<State>(loop)) {}
  ~DeferredReleaseQueue();

  DeferredReleaseQueue(const DeferredReleaseQueue&) = delete;
  DeferredReleaseQueue& operator=(const DeferredReleaseQueue&) = delete;

  //   then: runs on the loop after kGrace; not at all if this object is destroyed before. What it
  //   captures is kept until then, and released in either case.
  void Keep(absl::AnyInvocable<void() &&> then);
  // The same, but until `is_over` returns true, which is called on the loop every kLook.
  void KeepUntil(absl::AnyInvocable<bool()> is_over, absl::AnyInvocable<void() &&> then);

 private:
  static constexpr absl::Duration kLook = absl::Milliseconds(20);

  struct Entry {
    absl::Time until;
    // Not null: it is kept until this returns true.
    std::shared_ptr<absl::AnyInvocable<bool()>> is_over;
    absl::AnyInvocable<void() &&> then;
  };
  struct State {
    explicit State(Loop& owner) : loop(owner) {}

    Loop& loop;
    absl::Mutex mu;
    uint64_t last_id ABSL_GUARDED_BY(mu) = 0;
    std::map<uint64_t, Entry> entries ABSL_GUARDED_BY(mu);
  };

  static void End(State& state, uint64_t id);
  static void LookAgain(const std::shared_ptr<State>& state, uint64_t id);

  const std::shared_ptr<State> state_;
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_CUDA_IPC_DEFERRED_RELEASE_QUEUE_H_
