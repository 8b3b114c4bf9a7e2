// SPDX-License-Identifier: Apache-2.0
// FanOut: joins several asynchronous calls into one completion.
#ifndef FERRY_TENSORFLOW_MASTER_FAN_OUT_H_
#define FERRY_TENSORFLOW_MASTER_FAN_OUT_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace ferry::master {

// Counts pending calls. Start counts one for the caller, which ends it with End(), so that `done`
// cannot run while calls are still being started. Thread-safe.
class FanOut final {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // Calls `done`, with the first error, after End was called once per Begin and once more.
  static std::shared_ptr<FanOut> Start(Done done) {
    return std::shared_ptr<FanOut>(new FanOut(std::move(done)));
  }

  void Begin() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++pending_;
  }
  void End(const absl::Status& status = absl::OkStatus()) ABSL_LOCKS_EXCLUDED(mu_) {
    Done done;
    absl::Status first;
    {
      absl::MutexLock lock(&mu_);
      status_.Update(status);
      if (--pending_ > 0) return;
      done = std::move(done_);
      first = status_;
    }
    std::move(done)(std::move(first));
  }

 private:
  explicit FanOut(Done done) : done_(std::move(done)) {}

  absl::Mutex mu_;
  int pending_ ABSL_GUARDED_BY(mu_) = 1;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  Done done_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_FAN_OUT_H_
