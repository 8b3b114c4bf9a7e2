// SPDX-License-Identifier: Apache-2.0
// EventLoop: where a process waits for its peers, on a thread of its own or on that of a caller.
#ifndef FERRY_NET_EVENT_LOOP_H_
#define FERRY_NET_EVENT_LOOP_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/spin_lock.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "net/doorbell.h"

namespace ferry {

// Something that the loop looks after. Its methods are called by the loop, never by two threads at
// once, with no lock held.
class LoopSource {
 public:
  virtual ~LoopSource() = default;
  // Does what there is to do in memory; true if there was anything. Only of sources that poll.
  virtual bool Poll() { return false; }
  // Whether Poll would do anything: asked before the loop sleeps, which the kernel has to wake
  // then.
  virtual bool HasWork() { return false; }
  // A caller who drives has nothing to do any more but wait, in the kernel: whoever has work from
  // it, and is in no hurry, is to be told. Only of sources that poll.
  virtual void BeforeSleep() {}
  // Its descriptor has become ready, as EPOLL* bits. Told once for each change: it must go on until
  // the kernel has no more, or ask to be told again (EventLoop::Post).
  virtual void OnReady(uint32_t events) {}
};

struct EventLoopOptions {
  // How long a caller looks for more before it sleeps, and the loop's own thread too, though not
  // for longer than 50 us. A wake-up takes tens of microseconds on some machines; a look takes one.
  absl::Duration spin = absl::Microseconds(20);
  // While callers come and go, what none of them waits for is late by two of these at most.
  absl::Duration tick = absl::Microseconds(500);
  // Of its thread.
  std::string name = "ferry-lane";
};

// Thread-safe. One thread, which sleeps while a caller drives the loop in
// WaitUntil: what a caller waits for arrives on its own thread, without a wake-up.
class EventLoop final {
 public:
  using SourceId = uint64_t;

  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(EventLoopOptions options);
  // Sources are let go of; posted functions that have not run are dropped.
  ~EventLoop() { Stop(); }

  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Ends its thread; what is posted later never runs. Before what sources use is taken apart.
  void Stop();

  // `fd` (-1: none) stays the source's, and open until Remove. `polls`: it has a Poll.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason and what to raise; the source is not
  //   called, nor kept.
  absl::StatusOr<SourceId> Add(std::shared_ptr<LoopSource> source, int fd, uint32_t events,
                               bool polls);
  // The events that it wants to hear of from now on, also if it was unwatched. Those that are there
  // already are told.
  //   Errors: as Add.
  absl::Status Watch(SourceId id, int fd, uint32_t events);
  // The kernel does not tell of it any more, until Watch; it polls meanwhile. On the loop.
  void Unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }
  // It is called no more, but for a call that is under way. An id that Add did not give is none of
  // an error.
  void Remove(SourceId id, int fd);

  // Runs `function` on the loop, soon or `at` a time.
  void Post(absl::AnyInvocable<void() &&> function);
  void PostAt(absl::Time at, absl::AnyInvocable<void() &&> function);
  // How many functions wait for their time.
  size_t timers() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return timers_.size();
  }

  // Until `is_done` or the deadline (of SteadyClock); returns what `is_done` says then. Drives the
  // loop if nobody else does. Whoever makes `is_done` true calls Wake, unless on the loop.
  // REQUIRES: not on the loop (see IsOnLoop).
  bool WaitUntil(absl::FunctionRef<bool()> is_done, absl::Time deadline);
  void Wake();

  // Whether this thread is driving the loop just now: it must not wait for it then.
  bool IsOnLoop() const;
  // On the loop: whether this is a caller's thread, which waits for something of its own anyway.
  bool IsDrivenByCaller() const { return is_driven_by_caller_; }

  // On the loop: whether no other source polls, and may wait for this one's system calls.
  bool PollsOneSource() const { return polled_.size() == 1; }

  // Rung by peers that have put something where a source polls.
  Doorbell& doorbell() { return doorbell_; }
  absl::Duration spin() const { return options_.spin; }

 private:
  struct Entry {
    std::shared_ptr<LoopSource> source;
    bool polls = false;
  };

  explicit EventLoop(EventLoopOptions options) : options_(std::move(options)) {}

  void Run();
  bool TryLead();
  void StopDriving();
  // One look at everything. REQUIRES: driving.
  bool PollOnce();
  bool PollDescriptors(int timeout_ms);
  bool Tell(SourceId id, uint32_t events);
  void SleepInKernel();
  // Until the next look; true if the bell has rung.
  bool Tick();
  // Until nothing has come for a while, or a caller wants to drive.
  void DriveWhileBusy();
  bool RunPosted(bool also_timers);
  bool HasWork();
  void RefreshPolled();
  // Sleeps in the kernel until there is something to do. REQUIRES: driving.
  void Sleep(absl::FunctionRef<bool()> is_done, absl::Time until);
  absl::Time NextTimer();

  // Constant after Create.
  const EventLoopOptions options_;
  UniqueFd epoll_;
  Doorbell doorbell_;
  // Of the bell alone.
  UniqueFd tick_epoll_;

  // Taken by whoever drives; what is below it belongs to that thread.
  std::atomic<bool> is_driven_{false};
  std::vector<std::shared_ptr<LoopSource>> polled_;
  uint64_t polled_version_ = 0;
  uint32_t passes_ = 0;
  bool is_driven_by_caller_ = false;
  // While callers come and go nobody says that he sleeps, and peers need not ring: the loop's
  // thread looks now and then instead. It dozes, and a peer that can only wait may wake it.
  std::atomic<bool> is_ticking_{false};
  std::atomic<uint32_t> caller_drives_{0};

  std::atomic<int> callers_waiting_{0};
  std::atomic<bool> is_stopping_{false};

  // Sources and what is posted; never held while calling out.
  mutable absl::Mutex mu_;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, Entry> sources_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mu_);
  std::multimap<absl::Time, absl::AnyInvocable<void() &&>> timers_ ABSL_GUARDED_BY(mu_);
  // Copies that are read without the lock.
  std::atomic<uint64_t> version_{1};
  std::atomic<bool> has_posted_{false};
  std::atomic<int64_t> next_timer_ns_{INT64_MAX};

  // Callers that wait while another one drives, and the loop's thread while a caller does.
  absl::Mutex wait_mu_;
  absl::CondVar wait_changed_;
  std::atomic<int> parked_{0};

  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry

#endif  // FERRY_NET_EVENT_LOOP_H_
