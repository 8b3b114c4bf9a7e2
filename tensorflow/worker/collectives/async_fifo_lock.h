// SPDX-License-Identifier: Apache-2.0
// AsyncFifoLock: who may be the next to launch a collective on a device.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_ASYNC_FIFO_LOCK_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_ASYNC_FIFO_LOCK_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace ferry::worker {

// A lock that nobody blocks for: one is at the head, the others wait in the order in which they
// have come. Thread-safe.
class AsyncFifoLock final {
 public:
  using Ticket = int64_t;
  using AtHead = absl::AnyInvocable<void() &&>;

  // `at_head` runs when those who came before have left: once, perhaps inside, or in the Leave of
  // the one before.
  Ticket Enter(AtHead at_head) ABSL_LOCKS_EXCLUDED(mu_);
  // From the head, or from anywhere. True: `at_head` is not called any more. False: it has been, or
  // is being called.
  bool Leave(Ticket ticket) ABSL_LOCKS_EXCLUDED(mu_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Ticket ticket = 0;
    // Null: it has been called.
    AtHead at_head;
  };

  // Takes what the head is to be told, if it has not been.
  AtHead TakeNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  Ticket last_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_ASYNC_FIFO_LOCK_H_
