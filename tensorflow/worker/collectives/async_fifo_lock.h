// SPDX-License-Identifier: Apache-2.0
// AsyncFifoLock: serialises the launches of collectives on a device.
#ifndef FERRY_TENSORFLOW_WORKER_COLLECTIVES_ASYNC_FIFO_LOCK_H_
#define FERRY_TENSORFLOW_WORKER_COLLECTIVES_ASYNC_FIFO_LOCK_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace ferry::worker {

// An asynchronous lock in FIFO order: the entry at the head holds it, the others are queued. Never
// blocks. Thread-safe.
class AsyncFifoLock final {
 public:
  using Ticket = int64_t;
  using AtHead = absl::AnyInvocable<void() &&>;

  // Calls `at_head` once, when all earlier entries have left: possibly before Enter returns, or
  // inside the predecessor's Leave.
  Ticket Enter(AtHead at_head) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the entry, at the head or not. Returns true if `at_head` will not be called; false if
  // it has been or is being called.
  bool Leave(Ticket ticket) ABSL_LOCKS_EXCLUDED(mu_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Ticket ticket = 0;
    // Null once called.
    AtHead at_head;
  };

  // Takes the head's callback if it has not been called yet.
  AtHead TakeNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  Ticket last_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::worker

#endif  // FERRY_TENSORFLOW_WORKER_COLLECTIVES_ASYNC_FIFO_LOCK_H_
