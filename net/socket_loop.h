// SPDX-License-Identifier: Apache-2.0
// SocketLoop: waits for many sockets, on a thread of its own or on that of a caller.
#ifndef FERRY_NET_SOCKET_LOOP_H_
#define FERRY_NET_SOCKET_LOOP_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "base/thread.h"
#include "base/unique_fd.h"
#include "base/wakeup.h"

namespace ferry::coord {

// Something with a descriptor that the loop looks after. Called on the loop, that is by one thread
// at a time, with no lock held.
class SocketSource {
 public:
  virtual ~SocketSource() = default;
  // Its descriptor is ready, as EPOLL* bits; told again as long as it stays so.
  virtual void OnReady(uint32_t events) = 0;
  // The loop ends; nothing else is called after this.
  virtual void OnLoopEnd() = 0;
};

// Thread-safe. Mostly its own thread waits; while threads come one after the other that have
// nothing to do but wait for an answer, they wait in its place, and nobody has to be woken between
// the kernel and them. What none of them waits for may then be late by two of kTick. While things
// come within kLook of each other it looks for the next one for as long before it sleeps, and lets
// others have the core between looks: to be woken takes tens of microseconds on some machines.
class SocketLoop final {
 public:
  static constexpr absl::Duration kTick = absl::Microseconds(500);
  static constexpr absl::Duration kLook = absl::Microseconds(100);

  // What a thread waits for. Made before it can come.
  class Awaited final {
   public:
    // `loop` outlives it, and the call of Notify.
    explicit Awaited(SocketLoop& loop) : loop_(loop) { loop_.awaited_.fetch_add(1); }
    Awaited(const Awaited&) = delete;
    Awaited& operator=(const Awaited&) = delete;

    // It has come. Once, on any thread.
    void Notify() { loop_.OnCome(come_); }
    // Until it has; whoever promised it sees to it that it comes in time. Not on the loop.
    void Wait() { loop_.WaitFor(come_); }

   private:
    SocketLoop& loop_;
    absl::Notification come_;
  };

  // `name`: of its thread.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::shared_ptr<SocketLoop>> Create(std::string name);
  // The one that all agents of this process share, "ferry-link"; it lasts as long as somebody has
  // it.
  static absl::StatusOr<std::shared_ptr<SocketLoop>> OfClients();
  // Must not run on the loop.
  ~SocketLoop() { End(); }
  // Ends the thread, after OnLoopEnd of every source; what is posted from then on never runs. Must
  // not run on the loop, nor twice at once.
  void End() ABSL_LOCKS_EXCLUDED(mu_);

  SocketLoop(const SocketLoop&) = delete;
  SocketLoop& operator=(const SocketLoop&) = delete;

  // Keeps `source` until Remove. `fd` stays the source's, and open until Remove.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason; the source is not kept.
  absl::Status Add(std::shared_ptr<SocketSource> source, int fd, uint32_t events)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The events that it wants to hear of from now on.
  void Watch(SocketSource& source, int fd, uint32_t events);
  // REQUIRES: on the loop.
  void Remove(SocketSource& source, int fd) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `function` on the loop, soon; never when the loop has ended.
  void Post(absl::AnyInvocable<void() &&> function) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, `delay` later. What `function` holds is kept until then.
  void PostAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Something will come soon for which nobody waits: its thread is to look out for it.
  void WantThread();

  // How long it has been since it last waited for something.
  absl::Duration Lag() const;

  // To read into, for whoever is called on the loop, until it returns.
  static constexpr size_t kScratchBytes = size_t{64} << 10;
  char* scratch() { return scratch_.get(); }

 private:
  SocketLoop() = default;
  void Run();
  bool IsEnding() ABSL_LOCKS_EXCLUDED(mu_);
  bool TryLead();
  void StopDriving();
  // Waits for what is ready, and runs it. REQUIRES: driving.
  void RunOnce() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether its thread should leave the next turns to callers.
  bool ShouldStandBack();
  // Until nobody has driven for a while, or the thread is wanted.
  void YieldLeadership() ABSL_LOCKS_EXCLUDED(mu_);
  void WaitFor(absl::Notification& come);
  void OnCome(absl::Notification& come);
  void WakeDriver();
  void RunPosted() ABSL_LOCKS_EXCLUDED(mu_);
  // As epoll_wait; looks first if that is worth it.
  int Wait(epoll_event* events, int timeout_ms);
  // Runs what is due; returns the milliseconds until the next is, -1 if there is none.
  int RunDue();

  // Constant after Create.
  UniqueFd epoll_;
  UniqueFd wake_;
  std::unique_ptr<char[]> scratch_;

  // When it began what it is doing, on the steady clock in nanoseconds; 0 while it waits.
  std::atomic<int64_t> busy_since_{0};

  // Taken by the thread that is on the loop, its own or a caller's.
  std::atomic<bool> is_driven_{false};
  std::atomic<bool> is_driven_by_caller_{false};
  // How often callers have driven.
  std::atomic<uint32_t> caller_drives_{0};
  // A caller waited alone, and would have driven if the thread had not.
  std::atomic<bool> caller_came_{false};
  // Answers that threads wait for, or are about to.
  std::atomic<int> awaited_{0};
  std::atomic<bool> is_thread_wanted_{false};
  std::atomic<bool> stands_back_{false};
  // It sleeps for longer than a tick, since a caller waits for long; who leaves is to wake it.
  std::atomic<bool> sleeps_long_{false};
  Wakeup thread_wakeup_;

  // Of whoever drives: removed, but perhaps among the events that are being told.
  std::vector<std::shared_ptr<SocketSource>> removed_;
  std::multimap<absl::Time, absl::AnyInvocable<void() &&>> due_;
  bool is_worth_a_look_ = false;

  absl::Mutex mu_;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<SocketSource*, std::shared_ptr<SocketSource>> sources_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry::coord

#endif  // FERRY_NET_SOCKET_LOOP_H_
