// SPDX-License-Identifier: Apache-2.0
// Timers: callbacks at given times of an injected clock.
#ifndef FERRY_TENSORFLOW_MASTER_TIMERS_H_
#define FERRY_TENSORFLOW_MASTER_TIMERS_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/clock.h"

namespace ferry::master {

// Thread-safe. Passive: the owner calls RunDue at NextDeadline (TimerThread).
class Timers final {
 public:
  using Id = uint64_t;
  static constexpr Id kNone = 0;

  explicit Timers(const Clock& clock) : clock_(clock) {}

  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  // `wake` is called, with no lock held, whenever the next deadline becomes earlier. Set it before
  // the first Add.
  void SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

  absl::Time Now() const { return clock_.Now(); }

  // Calls `due` at that time. Discards `due` and returns kNone if the time is infinite.
  Id Add(absl::Time at, absl::AnyInvocable<void() &&> due) ABSL_LOCKS_EXCLUDED(mu_);
  Id AddAfter(absl::Duration delay, absl::AnyInvocable<void() &&> due) {
    return Add(clock_.Now() + delay, std::move(due));
  }
  // Returns true if the callback will not run; false if it has run or is running.
  bool Remove(Id id) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Time NextDeadline() const ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the due callbacks, with no lock held.
  void RunDue() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Key = std::pair<absl::Time, Id>;

  const Clock& clock_;
  std::function<void()> wake_;
  mutable absl::Mutex mu_;
  Id last_id_ ABSL_GUARDED_BY(mu_) = kNone;
  absl::btree_map<Key, absl::AnyInvocable<void() &&>> timers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Id, absl::Time> times_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ferry::master

#endif  // FERRY_TENSORFLOW_MASTER_TIMERS_H_
