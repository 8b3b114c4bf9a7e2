// SPDX-License-Identifier: Apache-2.0
// Spinning, sleeping, and the leader/follower protocol.
#include "net/event_loop.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/fence.h"
#include "base/file_limit.h"
#include "base/status_macros.h"

namespace ferry {
namespace {

thread_local const EventLoop* led_here = nullptr;

constexpr int kEventsAtOnce = 32;
// Polling descriptors costs a system call; polling memory does not.
constexpr uint32_t kPassesPerDescriptorLook = 64;
constexpr uint32_t kPassesPerTimerLook = 16;
// The longest sleep before timers are checked again.
constexpr absl::Duration kLongestSleep = absl::Seconds(1);
constexpr absl::Duration kThreadSpin = absl::Microseconds(50);
// A spinning caller does not yield its core for this long after the last event.
constexpr absl::Duration kGreedy = absl::Microseconds(50);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t ToNanos(absl::Time time) {
  return time == absl::InfiniteFuture() ? INT64_MAX : absl::ToUnixNanos(time);
}

absl::Status CannotWatch(int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "the kernel does not watch one more connection: epoll_ctl: ", std::strerror(error),
      error == ENOSPC ? " (raise fs.epoll.max_user_watches: `sysctl fs.epoll`)" : ""));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create(EventLoopOptions options) {
  auto loop = std::unique_ptr<EventLoop>(new EventLoop(std::move(options)));
  loop->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll_create1: ", ErrorWithFileLimit(errno)));
  }
  FERRY_ASSIGN_OR_RETURN(loop->doorbell_, Doorbell::Create());
  epoll_event event = {.events = EPOLLIN | EPOLLET, .data = {.u64 = 0}};
  if (epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->doorbell_.event_fd(), &event) != 0) {
    return CannotWatch(errno);
  }
  loop->tick_epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!loop->tick_epoll_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll_create1: ", ErrorWithFileLimit(errno)));
  }
  if (epoll_ctl(loop->tick_epoll_.get(), EPOLL_CTL_ADD, loop->doorbell_.event_fd(), &event) != 0) {
    return CannotWatch(errno);
  }
  loop->doorbell_.FallAsleep();
  loop->thread_ = std::make_unique<Thread>(loop->options_.name, [raw = loop.get()] { raw->Run(); });
  return loop;
}

void EventLoop::Stop() {
  is_stopping_.store(true);
  doorbell_.RingAnyway();
  {
    absl::MutexLock lock(&wait_mu_);
    wait_changed_.SignalAll();
  }
  thread_.reset();
}

absl::StatusOr<Loop::SourceId> EventLoop::AddEntry(Entry entry, int fd, uint32_t events) {
  uint64_t id = 0;
  {
    absl::MutexLock lock(&mu_);
    id = ++last_id_;
    sources_.emplace(id, std::move(entry));
    version_.fetch_add(1, std::memory_order_release);
  }
  if (fd >= 0) {
    epoll_event event = {.events = events | EPOLLET, .data = {.u64 = id}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      const int error = errno;
      Remove(id, -1);
      return CannotWatch(error);
    }
  }
  // The source may already have work to poll.
  doorbell_.Ring();
  return id;
}

absl::Status EventLoop::Watch(SourceId id, int fd, uint32_t events) {
  epoll_event event = {.events = events | EPOLLET, .data = {.u64 = id}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0 ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) {
    return absl::OkStatus();
  }
  return CannotWatch(errno);
}

void EventLoop::Remove(SourceId id, int fd) {
  if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  std::shared_ptr<LoopSource> dropped;
  absl::MutexLock lock(&mu_);
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  dropped = std::move(found->second.source);
  sources_.erase(found);
  version_.fetch_add(1, std::memory_order_release);
  // The leader's copy keeps it until its next poll; `dropped` is destroyed after the lock is
  // released.
  posted_.push_back([dropped = std::move(dropped)] {});
  has_posted_.store(true, std::memory_order_release);
}

void EventLoop::Post(absl::AnyInvocable<void() &&> function) {
  {
    absl::MutexLock lock(&mu_);
    posted_.push_back(std::move(function));
    has_posted_.store(true, std::memory_order_release);
  }
  doorbell_.Ring();
}

void EventLoop::PostAt(absl::Time at, absl::AnyInvocable<void() &&> function) {
  bool is_next = false;
  {
    absl::MutexLock lock(&mu_);
    is_next = timers_.empty() || at < timers_.begin()->first;
    timers_.emplace(at, std::move(function));
    if (is_next) next_timer_ns_.store(ToNanos(at), std::memory_order_release);
  }
  if (is_next) doorbell_.Ring();
}

bool EventLoop::RunPosted(bool also_timers) {
  const int64_t next = also_timers ? next_timer_ns_.load(std::memory_order_relaxed) : INT64_MAX;
  const bool is_due = next != INT64_MAX && next <= ToNanos(SteadyClock().CoarseNow());
  if (!is_due && !has_posted_.load(std::memory_order_acquire)) return false;
  std::vector<absl::AnyInvocable<void() &&>> due;
  {
    absl::MutexLock lock(&mu_);
    due.swap(posted_);
    has_posted_.store(false, std::memory_order_relaxed);
    const absl::Time now = SteadyClock().Now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      due.push_back(std::move(timers_.begin()->second));
      timers_.erase(timers_.begin());
    }
    next_timer_ns_.store(timers_.empty() ? INT64_MAX : ToNanos(timers_.begin()->first),
                         std::memory_order_release);
  }
  for (auto& function : due) std::move(function)();
  return !due.empty();
}

absl::Time EventLoop::NextTimer() {
  const int64_t nanos = next_timer_ns_.load(std::memory_order_acquire);
  return nanos == INT64_MAX ? absl::InfiniteFuture() : absl::FromUnixNanos(nanos);
}

void EventLoop::RefreshPolled() {
  const uint64_t version = version_.load(std::memory_order_acquire);
  if (version == polled_version_) return;
  std::vector<std::shared_ptr<PolledSource>> polled;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, entry] : sources_) {
      if (entry.polled != nullptr) polled.emplace_back(entry.source, entry.polled);
    }
  }
  polled_version_ = version;
  polled_.swap(polled);
}

bool EventLoop::PollOnce() {
  RefreshPolled();
  bool did_something = false;
  for (const std::shared_ptr<PolledSource>& source : polled_) {
    did_something |= source->Poll();
  }
  if (++passes_ % kPassesPerDescriptorLook == 0) did_something |= PollDescriptors(0);
  did_something |= RunPosted(/*also_timers=*/passes_ % kPassesPerTimerLook == 0);
  return did_something;
}

bool EventLoop::PollDescriptors(int timeout_ms) {
  epoll_event events[kEventsAtOnce];
  const int count = epoll_wait(epoll_.get(), events, kEventsAtOnce, timeout_ms);
  bool did_something = false;
  for (int i = 0; i < count; ++i) did_something |= Dispatch(events[i].data.u64, events[i].events);
  return did_something;
}

bool EventLoop::Dispatch(SourceId id, uint32_t events) {
  std::shared_ptr<LoopSource> source;
  {
    absl::MutexLock lock(&mu_);
    const auto found = sources_.find(id);
    if (found != sources_.end()) source = found->second.source;
  }
  // Id 0 is the doorbell, and another source may have been removed.
  if (source == nullptr) return false;
  source->OnReady(events);
  return true;
}

bool EventLoop::HasWork() {
  RefreshPolled();
  for (const std::shared_ptr<PolledSource>& source : polled_) {
    if (source->HasWork()) return true;
  }
  return has_posted_.load(std::memory_order_acquire) || NextTimer() <= SteadyClock().Now();
}

bool EventLoop::TryLead() {
  if (is_led_.load(std::memory_order_relaxed)) return false;
  if (is_led_.exchange(true, std::memory_order_acquire)) return false;
  led_here = this;
  // Not written while ticking: peers read this cache line for every frame and would miss on it.
  if (!is_ticking_.load(std::memory_order_relaxed)) doorbell_.WakeUp();
  return true;
}

void EventLoop::StopLeading() {
  is_led_by_caller_ = false;
  led_here = nullptr;
  bool has_more = false;
  if (!is_ticking_.load(std::memory_order_relaxed)) {
    doorbell_.FallAsleep();
    // Work may have arrived after the last poll: the thread in epoll_wait must look again.
    has_more = HasWork();
  }
  is_led_.store(false, std::memory_order_release);
  if (has_more) doorbell_.RingAnyway();
  FullFence();
  if (parked_.load(std::memory_order_relaxed) > 0) {
    absl::MutexLock lock(&wait_mu_);
    wait_changed_.SignalAll();
  }
}

void EventLoop::Sleep(absl::FunctionRef<bool()> is_done, absl::Time until) {
  is_ticking_.store(false, std::memory_order_relaxed);
  doorbell_.FallAsleep();
  if (!HasWork() && !is_done()) {
    until = std::min(until, NextTimer());
    const absl::Duration left = std::min(until - SteadyClock().Now(), kLongestSleep);
    // Rounded up: waking too early costs another turn.
    const int64_t ms = (absl::ToInt64Microseconds(left) + 999) / 1000;
    if (ms > 0) {
      for (const std::shared_ptr<PolledSource>& source : polled_) source->BeforeSleep();
      PollDescriptors(static_cast<int>(ms));
    }
  }
  doorbell_.WakeUp();
}

bool EventLoop::WaitUntil(absl::FunctionRef<bool()> is_done, absl::Time deadline) {
  FERRY_CHECK(!IsOnLoop());
  if (is_done()) return true;
  callers_waiting_.fetch_add(1, std::memory_order_relaxed);
  absl::Time give_up_spinning = SteadyClock().Now() + options_.spin;
  absl::Time yield_from = SteadyClock().Now() + kGreedy;
  bool done = false;
  int looks = 0;
  while (!(done = is_done())) {
    if (TryLead()) {
      is_led_by_caller_ = true;
      caller_lead_count_.fetch_add(1, std::memory_order_relaxed);
      for (uint32_t turn = 1; !(done = is_done()); ++turn) {
        if (PollOnce()) {
          give_up_spinning = absl::InfinitePast();
          continue;
        }
        Pause();
        if (turn % 16 != 0) continue;
        const absl::Time now = SteadyClock().Now();
        if (give_up_spinning == absl::InfinitePast()) {
          give_up_spinning = now + options_.spin;
          yield_from = now + kGreedy;
        }
        if (now >= deadline) break;
        // The peer that copies for this caller may need the core.
        if (now >= yield_from) sched_yield();
        if (now >= give_up_spinning) Sleep(is_done, deadline);
      }
      StopLeading();
      break;
    }
    // Another thread leads. It makes the condition true or yields; the loop's own thread yields at
    // once.
    if (SteadyClock().Now() < give_up_spinning) {
      // The leader may have been preempted, perhaps by this thread.
      if (++looks % 16 == 0) {
        sched_yield();
      } else {
        Pause();
      }
      continue;
    }
    absl::MutexLock lock(&wait_mu_);
    parked_.fetch_add(1, std::memory_order_seq_cst);
    if (!is_done() && is_led_.load(std::memory_order_seq_cst)) {
      wait_changed_.WaitWithDeadline(
          &wait_mu_, absl::Now() + std::min<absl::Duration>(deadline - SteadyClock().Now(),
                                                            absl::Milliseconds(100)));
    }
    parked_.fetch_sub(1, std::memory_order_relaxed);
    if (SteadyClock().Now() >= deadline) {
      done = is_done();
      break;
    }
  }
  callers_waiting_.fetch_sub(1, std::memory_order_relaxed);
  return done;
}

void EventLoop::Wake() {
  FullFence();
  if (parked_.load(std::memory_order_relaxed) > 0) {
    absl::MutexLock lock(&wait_mu_);
    wait_changed_.SignalAll();
  }
  // A leading caller may be asleep in the kernel.
  if (callers_waiting_.load(std::memory_order_relaxed) > 0 && !IsOnLoop()) doorbell_.Ring();
}

bool EventLoop::IsOnLoop() const { return led_here == this; }

void EventLoop::Run() {
  uint32_t seen = caller_lead_count_.load(std::memory_order_relaxed);
  while (!is_stopping_.load()) {
    bool was_woken = true;
    if (is_ticking_.load(std::memory_order_relaxed)) {
      was_woken = Tick();
    } else {
      SleepInKernel();
    }
    if (is_stopping_.load()) return;
    // A caller has led since the last turn, and will probably do so again.
    const uint32_t now = caller_lead_count_.load(std::memory_order_relaxed);
    const bool callers_come_and_go = seen != now;
    if (callers_come_and_go && !was_woken) {
      seen = now;
      continue;
    }
    // A leading caller sets the doorbell itself when it sleeps.
    if (!TryLead()) continue;
    seen = now;
    LeadWhileBusy();
    is_ticking_.store(callers_come_and_go, std::memory_order_relaxed);
    if (callers_come_and_go) {
      // Everything rung for so far has been handled.
      epoll_event event;
      epoll_wait(tick_epoll_.get(), &event, 1, 0);
      doorbell_.EnterPolling();
    }
    StopLeading();
  }
}

// Sleeps until an event arrives that no caller handles.
void EventLoop::SleepInKernel() {
  int64_t ms = -1;
  if (const absl::Time timer = NextTimer(); timer != absl::InfiniteFuture()) {
    ms = std::clamp<int64_t>((absl::ToInt64Microseconds(timer - SteadyClock().Now()) + 999) / 1000,
                             0, 60'000);
  }
  epoll_event events[kEventsAtOnce];
  const int count = epoll_wait(epoll_.get(), events, kEventsAtOnce, static_cast<int>(ms));
  // Edge-triggered events are reported once: hand them to the leader, which may be in epoll_wait
  // too.
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == 0) continue;
    Post([this, id = events[i].data.u64, bits = events[i].events] { Dispatch(id, bits); });
  }
  if (count <= 0 || !is_led_.load(std::memory_order_seq_cst)) return;
  doorbell_.RingAnyway();
  absl::MutexLock lock(&wait_mu_);
  parked_.fetch_add(1, std::memory_order_seq_cst);
  if (is_led_.load(std::memory_order_seq_cst) && !is_stopping_.load()) {
    wait_changed_.WaitWithTimeout(&wait_mu_, absl::Milliseconds(100));
  }
  parked_.fetch_sub(1, std::memory_order_relaxed);
}

bool EventLoop::Tick() {
  pollfd bell = {.fd = tick_epoll_.get(), .events = POLLIN};
  const timespec timeout = absl::ToTimespec(options_.tick);
  if (ppoll(&bell, 1, &timeout, nullptr) <= 0) return false;
  // Arms the bell for the next peer. If the leader has fallen asleep by now, it stays asleep.
  doorbell_.EnterPollingIfAwake();
  epoll_event event;
  return epoll_wait(tick_epoll_.get(), &event, 1, 0) > 0;
}

void EventLoop::LeadWhileBusy() {
  absl::Time last_work = SteadyClock().Now();
  uint32_t turn = 0;
  while (!is_stopping_.load(std::memory_order_relaxed) &&
         callers_waiting_.load(std::memory_order_relaxed) == 0) {
    if (PollOnce()) {
      last_work = absl::InfinitePast();
      continue;
    }
    Pause();
    if (++turn % 16 != 0) continue;
    const absl::Time now = SteadyClock().Now();
    if (last_work == absl::InfinitePast()) last_work = now;
    if (now - last_work >= std::min(options_.spin, kThreadSpin)) return;
  }
  // A caller waits and will lead on its own thread. StopLeading looks once more.
}

}  // namespace ferry
