// SPDX-License-Identifier: Apache-2.0
// EventLoop: waits for peers on its own thread or on that of a waiting caller (leader/follower).
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
#include "net/loop.h"

namespace ferry {

// A source with work in memory, which the leader polls.
class PolledSource : public LoopSource {
 public:
  // Does the work pending in memory; returns true if there was any.
  virtual bool Poll() = 0;
  // Returns true if Poll would do anything. Called before the loop sleeps: a source without work
  // must have the kernel wake the loop later.
  virtual bool HasWork() { return false; }
  // The leading caller is about to block in the kernel: notify peers that deferred work of this
  // caller.
  virtual void BeforeSleep() {}
  void OnReady(uint32_t events) override {}
};

struct EventLoopOptions {
  // How long a caller spins before it sleeps; also the loop's own thread, up to 50 us. A wake-up
  // takes tens of microseconds on some machines; a poll takes one.
  absl::Duration spin = absl::Microseconds(20);
  // While callers come and go, events that none of them waits for are delayed by at most two
  // ticks.
  absl::Duration tick = absl::Microseconds(500);
  // The thread's name.
  std::string name = "ferry-io";
};

// Thread-safe. Has one thread, which sleeps while a caller leads the loop in WaitUntil: what the
// caller waits for arrives on the caller's thread, without a wake-up.
class EventLoop final : public Loop {
 public:
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create(EventLoopOptions options);
  // Releases the sources; posted functions that have not run are destroyed.
  ~EventLoop() override { Stop(); }

  // Ends the thread; functions posted later never run. Call it before destroying what sources use.
  void Stop();

  // Edge-triggered. `fd`: -1 for none.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason and what to raise; the source is not
  //   called, nor kept.
  absl::StatusOr<SourceId> Add(std::shared_ptr<LoopSource> source, int fd,
                               uint32_t events) override {
    return AddEntry({.source = std::move(source)}, fd, events);
  }
  absl::StatusOr<SourceId> AddPolled(std::shared_ptr<PolledSource> source, int fd,
                                     uint32_t events) {
    PolledSource* const polled = source.get();
    return AddEntry({.source = std::move(source), .polled = polled}, fd, events);
  }
  // Also after Unwatch.
  //   Errors: as Add.
  absl::Status Watch(SourceId id, int fd, uint32_t events) override;
  // Stops kernel events of `fd` until Watch; the source is still polled. On the loop only.
  void Unwatch(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }
  // A source that polls may be polled once more, by the pass in progress.
  void Remove(SourceId id, int fd) override;

  void Post(absl::AnyInvocable<void() &&> function) override;
  void PostAt(absl::Time at, absl::AnyInvocable<void() &&> function) override;
  // The number of pending timers.
  size_t timers() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return timers_.size();
  }

  // Blocks until `is_done` or the deadline (of SteadyClock); returns the final value of `is_done`.
  // Leads the loop if no other thread does. A thread that makes `is_done` true calls Wake, unless
  // it is on the loop. REQUIRES: not on the loop (see IsOnLoop).
  bool WaitUntil(absl::FunctionRef<bool()> is_done, absl::Time deadline);
  void Wake();

  bool IsOnLoop() const override;
  // On the loop: true on a caller's thread, which would wait anyway.
  bool IsLedByCaller() const { return is_led_by_caller_; }

  // On the loop: true if only one source polls, so that its system calls delay no other.
  bool PollsOneSource() const { return polled_.size() == 1; }

  // Rung by peers that have written where a source polls.
  Doorbell& doorbell() { return doorbell_; }
  absl::Duration spin() const { return options_.spin; }

 private:
  struct Entry {
    std::shared_ptr<LoopSource> source;
    // The same object if it polls.
    PolledSource* polled = nullptr;
  };

  explicit EventLoop(EventLoopOptions options) : options_(std::move(options)) {}

  absl::StatusOr<SourceId> AddEntry(Entry entry, int fd, uint32_t events);
  void Run();
  bool TryLead();
  void StopLeading();
  // WaitUntil, after TryLead.
  bool LeadUntil(absl::FunctionRef<bool()> is_done, absl::Time deadline);
  // WaitUntil, for a caller while another thread leads.
  bool FollowUntil(absl::FunctionRef<bool()> is_done, absl::Time deadline);
  // Polls every source once. REQUIRES: leading.
  bool PollOnce();
  // Sets the time of the next look.
  bool LookAtDescriptors(int64_t now_ns);
  bool PollDescriptors(int timeout_ms);
  bool Dispatch(SourceId id, uint32_t events);
  void SleepInKernel();
  // Sleeps until the next tick; returns true if the bell has rung.
  bool Tick();
  // Leads until idle for a while, or until a caller is ready to lead.
  void LeadWhileBusy();
  // Also timers that are due at `now_ns`.
  bool RunPosted(int64_t now_ns);
  bool HasWork();
  void RefreshPolled();
  // Sleeps in the kernel until there is work. REQUIRES: leading.
  void Sleep(absl::FunctionRef<bool()> is_done, absl::Time until);
  absl::Time NextTimer();
  // Counts this thread among the parked. It must look once more whether it has to wait.
  void Park() ABSL_EXCLUSIVE_LOCKS_REQUIRED(wait_mu_);
  void SignalParked() ABSL_LOCKS_EXCLUDED(wait_mu_);
  // Does what Wake has put off. REQUIRES: leading.
  void SignalOwed();

  // Constant after Create.
  const EventLoopOptions options_;
  UniqueFd epoll_;
  Doorbell doorbell_;
  // Contains the bell only.
  UniqueFd tick_epoll_;

  // Held by the leader; the fields below belong to that thread.
  std::atomic<bool> is_led_{false};
  std::vector<std::shared_ptr<PolledSource>> polled_;
  uint64_t polled_version_ = 0;
  uint32_t passes_ = 0;
  bool is_led_by_caller_ = false;
  // Of SteadyClock, in nanoseconds.
  int64_t next_look_ns_ = INT64_MIN;
  int64_t last_event_ns_ = 0;
  // A descriptor has had one since the last look.
  bool has_had_event_ = false;
  // A thread that parked meanwhile may have missed a Wake on the loop.
  bool owes_signal_ = false;
  // While callers come and go, no thread publishes that it sleeps and peers need not ring: the
  // loop's thread polls every tick instead. A peer that is about to block may still wake it.
  std::atomic<bool> is_ticking_{false};
  std::atomic<uint32_t> caller_lead_count_{0};

  // While another thread leads.
  std::atomic<int> callers_waiting_{0};
  // A leading caller is in the kernel, or about to be.
  std::atomic<bool> is_caller_asleep_{false};
  std::atomic<bool> is_stopping_{false};

  // Guards sources and posted functions; never held while calling out.
  mutable absl::Mutex mu_;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, Entry> sources_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mu_);
  std::multimap<absl::Time, absl::AnyInvocable<void() &&>> timers_ ABSL_GUARDED_BY(mu_);
  // Copies that can be read without the lock.
  std::atomic<uint64_t> version_{1};
  std::atomic<bool> has_posted_{false};
  std::atomic<int64_t> next_timer_ns_{INT64_MAX};
  // Sources that are streams (LoopSource::IsStream).
  std::atomic<int> stream_count_{0};

  // For callers that wait while another one leads, and for the loop's thread while a caller does.
  absl::Mutex wait_mu_;
  absl::CondVar wait_changed_;
  std::atomic<int> parked_{0};

  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry

#endif  // FERRY_NET_EVENT_LOOP_H_
