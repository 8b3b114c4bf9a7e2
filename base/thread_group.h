// SPDX-License-Identifier: Apache-2.0
// ThreadGroup: functions that block, each on a thread of its own.
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

// For what is rare and may wait for others: a pool of fixed size would let them wait for each
// other. Thread-safe.
class ThreadGroup final {
 public:
  ThreadGroup() = default;
  // Waits for all that have begun.
  ~ThreadGroup() { StopWithin(absl::InfiniteDuration()); }

  // Runs `body` on a new thread called `name` (at most 15 characters). False after Stop: it is not
  // run.
  bool Run(std::string name, absl::AnyInvocable<void() &&> body) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for all that have begun: tell them to stop first. Not on one of the threads. The names of
  // those that have not ended within `timeout`, which go on: what they use must stay until the
  // process ends.
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
