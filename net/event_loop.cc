// SPDX-License-Identifier: Apache-2.0
// Spinning, sleeping, and the leader/follower protocol.
#include "net/event_loop.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

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
// Polling memory costs less than reading the clock; polling descriptors costs a system call.
constexpr uint32_t kPassesPerClockRead = 16;
// At most one look at descriptors in this many passes: sources that poll sockets take long for one.
constexpr uint32_t kPassesPerLook = 64;
// A look is due after this part of the time since the last event of a descriptor: an event is found
// late by at most as much, relatively. Within these bounds, the second while there are streams.
constexpr int64_t kQuietPerLook = 64;
constexpr int64_t kShortestBetweenLooks = 2'000;
constexpr int64_t kLongestBetweenLooksAtStreams = 20'000;
constexpr int64_t kLongestBetweenLooks = 200'000;
// A peer that answers at once does so within this many passes, and a pause lasts longer than one.
constexpr uint32_t kPassesWithoutPause = 100;
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

int64_t NowNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
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
    if (entry.source->IsStream()) stream_count_.fetch_add(1, std::memory_order_relaxed);
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
  if (dropped->IsStream()) stream_count_.fetch_sub(1, std::memory_order_relaxed);
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

bool EventLoop::RunPosted(int64_t now_ns) {
  const bool is_due = next_timer_ns_.load(std::memory_order_relaxed) <= now_ns;
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
  SignalOwed();
  RefreshPolled();
  bool did_something = false;
  for (const std::shared_ptr<PolledSource>& source : polled_) {
    did_something |= source->Poll();
  }
  int64_t now_ns = INT64_MIN;
  if (++passes_ % kPassesPerClockRead == 0) {
    now_ns = NowNanos();
    if (passes_ % kPassesPerLook == 0 && now_ns >= next_look_ns_)
      did_something |= LookAtDescriptors(now_ns);
  }
  did_something |= RunPosted(now_ns);
  return did_something;
}

bool EventLoop::LookAtDescriptors(int64_t now_ns) {
  const bool did_something = PollDescriptors(0);
  if (std::exchange(has_had_event_, false)) last_event_ns_ = now_ns;
  const int64_t longest = stream_count_.load(std::memory_order_relaxed) > 0
                              ? kLongestBetweenLooksAtStreams
                              : kLongestBetweenLooks;
  next_look_ns_ = now_ns + std::clamp((now_ns - last_event_ns_) / kQuietPerLook,
                                      kShortestBetweenLooks, longest);
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
  has_had_event_ = true;
  next_look_ns_ = INT64_MIN;
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
  owes_signal_ = false;
  is_led_.store(false, std::memory_order_release);
  if (has_more) doorbell_.RingAnyway();
  FullFence();
  if (parked_.load(std::memory_order_relaxed) > 0) SignalParked();
}

void EventLoop::SignalParked() {
  absl::MutexLock lock(&wait_mu_);
  wait_changed_.SignalAll();
}

void EventLoop::SignalOwed() {
  if (!owes_signal_) return;
  owes_signal_ = false;
  FullFence();
  if (parked_.load(std::memory_order_relaxed) > 0) SignalParked();
}

void EventLoop::Sleep(absl::FunctionRef<bool()> is_done, absl::Time until) {
  SignalOwed();
  is_ticking_.store(false, std::memory_order_relaxed);
  is_caller_asleep_.store(true, std::memory_order_relaxed);
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
  is_caller_asleep_.store(false, std::memory_order_relaxed);
}

bool EventLoop::WaitUntil(absl::FunctionRef<bool()> is_done, absl::Time deadline) {
  FERRY_CHECK(!IsOnLoop());
  if (is_done()) return true;
  if (TryLead()) return LeadUntil(is_done, deadline);
  callers_waiting_.fetch_add(1, std::memory_order_relaxed);
  const bool done = FollowUntil(is_done, deadline);
  callers_waiting_.fetch_sub(1, std::memory_order_relaxed);
  return done;
}

bool EventLoop::LeadUntil(absl::FunctionRef<bool()> is_done, absl::Time deadline) {
  is_led_by_caller_ = true;
  // Only leaders write it.
  caller_lead_count_.store(caller_lead_count_.load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
  // Since the first look at the clock after the last event.
  absl::Time give_up_spinning = absl::InfinitePast();
  absl::Time yield_from;
  bool done = false;
  uint32_t turn = 0;
  uint32_t empty_passes = 0;
  while (!(done = is_done())) {
    if (PollOnce()) {
      give_up_spinning = absl::InfinitePast();
      empty_passes = 0;
      continue;
    }
    if (++empty_passes > kPassesWithoutPause) Pause();
    if (++turn % 16 != 0) continue;
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
  return done;
}

bool EventLoop::FollowUntil(absl::FunctionRef<bool()> is_done, absl::Time deadline) {
  const absl::Time give_up_spinning = SteadyClock().Now() + options_.spin;
  int looks = 0;
  while (!is_done()) {
    if (TryLead()) return LeadUntil(is_done, deadline);
    const absl::Time now = SteadyClock().Now();
    // However long it may poll.
    if (now >= deadline) return is_done();
    // Another thread leads. It makes the condition true or yields; the loop's own thread yields at
    // once.
    if (now < give_up_spinning) {
      // The leader may have been preempted, perhaps by this thread.
      if (++looks % 16 == 0) {
        sched_yield();
      } else {
        Pause();
      }
      continue;
    }
    absl::MutexLock lock(&wait_mu_);
    Park();
    if (!is_done() && is_led_.load(std::memory_order_relaxed)) {
      wait_changed_.WaitWithDeadline(
          &wait_mu_, absl::Now() + std::min<absl::Duration>(deadline - SteadyClock().Now(),
                                                            absl::Milliseconds(100)));
    }
    parked_.fetch_sub(1, std::memory_order_relaxed);
  }
  return true;
}

// A thread stores what another waits for (the condition, that it leads no longer), and signals if
// it sees parked_. The other counts itself in parked_, then looks, both under wait_mu_ until it
// waits. With a full fence between the two on either side, one sees the other's store. A thread
// that has seen parked_ takes wait_mu_ to signal: those who took it before wait already, and those
// who take it afterwards see what was stored. So a missing fence matters only to a thread that was
// not seen, and the fence may come later: on the loop, where a pass may complete many operations,
// before the next pass (SignalOwed), or when the leader stops, which has a fence of its own and is
// all that a caller pays that was the only one.
//
// A caller that leads waits in the kernel only after is_caller_asleep_, a fence (FallAsleep), and a
// look at its condition: the same pattern, with the same fence here. Before the bell is rung there
// has been a fence since the condition was stored, so none is needed for the bell's state, which is
// stored before that fence too.
void EventLoop::Wake() {
  if (IsOnLoop()) {
    if (parked_.load(std::memory_order_relaxed) > 0) {
      SignalParked();
    } else {
      owes_signal_ = true;
    }
    return;
  }
  FullFence();
  if (parked_.load(std::memory_order_relaxed) > 0) SignalParked();
  if (is_caller_asleep_.load(std::memory_order_relaxed)) doorbell_.RingAfterFence();
}

void EventLoop::Park() {
  parked_.fetch_add(1, std::memory_order_relaxed);
  FullFence();
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
  Park();
  if (is_led_.load(std::memory_order_relaxed) && !is_stopping_.load()) {
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
