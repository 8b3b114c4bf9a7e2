// SPDX-License-Identifier: Apache-2.0
// SocketLoop: epoll loop on its own thread or on that of a waiting caller (leader/follower).
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
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "base/thread.h"
#include "base/unique_fd.h"
#include "base/wakeup.h"
#include "net/loop.h"

namespace ferry {

// Thread-safe. Normally its own thread waits. While threads that only wait for an answer come one
// after the other, they lead the loop instead, which saves the wake-up between the kernel and
// them. Other events may then be delayed by up to two kTick. While events come within kBusyPoll of
// each other, the loop polls for as long before it sleeps, and yields the core between polls: a
// wake-up takes tens of microseconds on some machines.
class SocketLoop final : public Loop {
 public:
  static constexpr absl::Duration kTick = absl::Microseconds(500);
  static constexpr absl::Duration kBusyPoll = absl::Microseconds(100);

  // An event that a thread waits for. Constructed before the event can occur.
  class Awaited final {
   public:
    // `loop` outlives it and the call of Notify.
    explicit Awaited(SocketLoop& loop) : loop_(loop) { loop_.awaited_.fetch_add(1); }
    Awaited(const Awaited&) = delete;
    Awaited& operator=(const Awaited&) = delete;

    // Reports the event. Called once, on any thread.
    void Notify() { loop_.OnNotified(notification_); }
    // Blocks until Notify, which the event's source must call in time. Not on the loop.
    void Wait() { loop_.WaitFor(notification_); }

   private:
    SocketLoop& loop_;
    absl::Notification notification_;
  };

  // `name`: of the thread.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason.
  static absl::StatusOr<std::shared_ptr<SocketLoop>> Create(std::string name);
  // Returns the loop that all agents of this process share, "ferry-link"; it lives as long as a
  // reference to it.
  static absl::StatusOr<std::shared_ptr<SocketLoop>> OfClients();
  // Must not run on the loop.
  ~SocketLoop() override { End(); }
  // Calls OnLoopEnd of every source and ends the thread; functions posted later never run. Must
  // not run on the loop, nor concurrently with itself.
  void End() ABSL_LOCKS_EXCLUDED(mu_);

  // Level-triggered.
  //   Errors: RESOURCE_EXHAUSTED with the kernel's reason; CANCELLED after End. The source is not
  //   kept.
  absl::StatusOr<SourceId> Add(std::shared_ptr<LoopSource> source, int fd, uint32_t events) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Watch(SourceId id, int fd, uint32_t events) override;
  void Remove(SourceId id, int fd) override ABSL_LOCKS_EXCLUDED(mu_);

  void Post(absl::AnyInvocable<void() &&> function) override ABSL_LOCKS_EXCLUDED(mu_);
  void PostAt(absl::Time at, absl::AnyInvocable<void() &&> function) override
      ABSL_LOCKS_EXCLUDED(mu_);

  bool IsOnLoop() const override;

  // An event is expected that no caller waits for: the loop's own thread is to wait for it.
  void RequestThread();

  // The time since the loop last waited for events.
  absl::Duration Lag() const;

  // A read buffer for the source that is being called, until it returns.
  static constexpr size_t kScratchBytes = size_t{64} << 10;
  char* scratch() { return scratch_.get(); }

 private:
  // The kernel's events point to it.
  struct Entry {
    std::shared_ptr<LoopSource> source;
  };

  SocketLoop() = default;
  void Run();
  bool IsEnding() ABSL_LOCKS_EXCLUDED(mu_);
  bool TryLead();
  void StopLeading();
  // Waits for ready sources and runs them. REQUIRES: leading.
  void RunOnce() ABSL_LOCKS_EXCLUDED(mu_);
  // True if the loop's thread should leave the next turns to callers.
  bool ShouldYieldLeadership();
  // Blocks until no caller has led for a while, or the thread is wanted.
  void YieldLeadership() ABSL_LOCKS_EXCLUDED(mu_);
  void WaitFor(absl::Notification& notification);
  void OnNotified(absl::Notification& notification);
  void WakeLeader();
  void RunPosted() ABSL_LOCKS_EXCLUDED(mu_);
  // As epoll_wait, but polls first if that is worthwhile.
  int Wait(epoll_event* events, int timeout_ms);
  // Runs due timers; returns the milliseconds until the next one, -1 if there is none.
  int RunDue();

  // Constant after Create.
  UniqueFd epoll_;
  UniqueFd wake_;
  std::unique_ptr<char[]> scratch_;

  // When the current work began, in nanoseconds of the steady clock; 0 while waiting.
  std::atomic<int64_t> busy_since_{0};

  // Held by the leader: the loop's own thread or a caller.
  std::atomic<bool> is_led_{false};
  std::atomic<bool> is_led_by_caller_{false};
  // How often callers have led.
  std::atomic<uint32_t> caller_lead_count_{0};
  // A caller waited alone, and would have led if the thread had not.
  std::atomic<bool> caller_came_{false};
  // Answers that threads wait for or will wait for.
  std::atomic<int> awaited_{0};
  std::atomic<bool> is_thread_wanted_{false};
  std::atomic<bool> yields_leadership_{false};
  // The thread sleeps longer than a tick, since a caller leads for long; a caller that stops
  // leading wakes it.
  std::atomic<bool> sleeps_long_{false};
  Wakeup thread_wakeup_;

  // Leader only: what was removed and may still be among the events being dispatched.
  std::vector<std::unique_ptr<Entry>> removed_;
  std::multimap<absl::Time, absl::AnyInvocable<void() &&>> due_;
  bool is_worth_polling_ = false;

  absl::Mutex mu_;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  SourceId last_id_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<SourceId, std::unique_ptr<Entry>> sources_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<Thread> thread_;
};

}  // namespace ferry

#endif  // FERRY_NET_SOCKET_LOOP_H_
