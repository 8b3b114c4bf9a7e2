// SPDX-License-Identifier: Apache-2.0
// Timers: what is to be done at a time, by a clock that is given.
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

// Thread-safe. Does nothing by itself: somebody calls RunDue at NextDeadline (TimerThread).
class Timers final {
 public:
  using Id = uint64_t;
  static constexpr Id kNone = 0;

  explicit Timers(const Clock& clock) : clock_(clock) {}

  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  // `wake` is called, with no lock held, when the next deadline has become an earlier one. Before
  // the first Add.
  void SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

  absl::Time Now() const { return clock_.Now(); }

  // Calls `due` at that time. kNone, and it is dropped, for one that never comes.
  Id Add(absl::Time at, absl::AnyInvocable<void() &&> due) ABSL_LOCKS_EXCLUDED(mu_);
  Id AddAfter(absl::Duration delay, absl::AnyInvocable<void() &&> due) {
    return Add(clock_.Now() + delay, std::move(due));
  }
  // True: it will not be called. False: it has been, or is being.
  bool Remove(Id id) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Time NextDeadline() const ABSL_LOCKS_EXCLUDED(mu_);
  // Calls, with no lock held, what is due.
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
