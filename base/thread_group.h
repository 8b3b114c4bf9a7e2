// SPDX-License-Identifier: Apache-2.0
// ThreadGroup: runs blocking functions, each on its own thread.
#ifndef FERRY_BASE_THREAD_GROUP_H_
#define FERRY_BASE_THREAD_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "base/thread.h"

namespace ferry {

// For rare functions that may wait for one another: in a fixed-size pool they could deadlock.
// Thread-safe.
class ThreadGroup final {
 public:
  ThreadGroup() = default;
  // Blocks until all started functions have returned.
  ~ThreadGroup() { StopWithin(absl::InfiniteDuration()); }

  // Runs `body` on a new thread called `name` (at most 15 characters). Returns false, without
  // running it, after Stop.
  bool Run(std::string name, absl::AnyInvocable<void() &&> body) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until all started functions have returned: signal them to stop first. Must not run on
  // one of the threads. Returns the names of those that have not ended within `timeout`; they
  // continue, so what they use must live until the process ends.
  std::vector<std::string> StopWithin(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::string name;
    std::shared_ptr<absl::Notification> is_over;
    std::unique_ptr<Thread> thread;
  };

  absl::Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry

#endif  // FERRY_BASE_THREAD_GROUP_H_
