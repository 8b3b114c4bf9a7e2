// SPDX-License-Identifier: Apache-2.0
// epoll, and the leader/follower protocol.
#include "net/socket_loop.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/fence.h"
#include "base/file_limit.h"

namespace ferry {
namespace {

constexpr int kMaxEvents = 256;
// The thread's sleep while one caller leads for long.
constexpr absl::Duration kLongSleep = absl::Milliseconds(100);

thread_local const SocketLoop* socket_loop_led_here = nullptr;

absl::Status OutOfResources(absl::string_view what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", ErrorWithFileLimit(error)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<SocketLoop>> SocketLoop::Create(std::string name) {
  auto loop = std::shared_ptr<SocketLoop>(new SocketLoop());
  loop->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_.valid()) return OutOfResources("epoll_create1", errno);
  loop->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->wake_.valid()) return OutOfResources("eventfd", errno);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return OutOfResources("epoll_ctl", errno);
  }
  loop->scratch_.reset(new char[kScratchBytes]);
  loop->thread_ = std::make_unique<Thread>(std::move(name), [loop = loop.get()] { loop->Run(); });
  return loop;
}

absl::StatusOr<std::shared_ptr<SocketLoop>> SocketLoop::OfClients() {
  static absl::Mutex mu(absl::kConstInit);
  static std::weak_ptr<SocketLoop>& shared = *new std::weak_ptr<SocketLoop>;
  static pid_t owner = 0;
  absl::MutexLock lock(&mu);
  // A forked child has its parent's objects, but not its threads.
  if (std::exchange(owner, getpid()) != getpid()) shared.reset();
  if (std::shared_ptr<SocketLoop> loop = shared.lock(); loop != nullptr) return loop;
  absl::StatusOr<std::shared_ptr<SocketLoop>> loop = Create("ferry-link");
  if (loop.ok()) shared = *loop;
  return loop;
}

void SocketLoop::End() {
  if (thread_ == nullptr) return;
  {
    absl::MutexLock lock(&mu_);
    is_ending_ = true;
  }
  WakeLeader();
  thread_wakeup_.Wake();
  thread_->Join();
  thread_ = nullptr;
}

absl::StatusOr<Loop::SourceId> SocketLoop::Add(std::shared_ptr<LoopSource> source, int fd,
                                               uint32_t events) {
  auto entry = std::make_unique<Entry>(Entry{std::move(source)});
  epoll_event event = {};
  event.events = events;
  event.data.ptr = entry.get();
  absl::MutexLock lock(&mu_);
  if (is_ending_) return absl::CancelledError("the loop has ended");
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return OutOfResources("epoll_ctl", errno);
  }
  sources_.emplace(++last_id_, std::move(entry));
  return last_id_;
}

absl::Status SocketLoop::Watch(SourceId id, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  absl::MutexLock lock(&mu_);
  const auto found = sources_.find(id);
  if (found == sources_.end()) return absl::CancelledError("the source was removed");
  event.data.ptr = found->second.get();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return OutOfResources("epoll_ctl", errno);
  }
  return absl::OkStatus();
}

void SocketLoop::Remove(SourceId id, int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  std::unique_ptr<Entry> removed;
  {
    absl::MutexLock lock(&mu_);
    const auto found = sources_.find(id);
    if (found == sources_.end()) return;
    removed = std::move(found->second);
    sources_.erase(found);
  }
  if (IsOnLoop()) return removed_.push_back(std::move(removed));
  // The leader may be about to call it; posted functions run when it has called all that are ready.
  Post([removed = std::move(removed)] {});
}

void SocketLoop::Post(absl::AnyInvocable<void() &&> function) {
  {
    absl::MutexLock lock(&mu_);
    posted_.push_back(std::move(function));
    if (posted_.size() > 1) return;  // The first poster has woken the loop.
  }
  WakeLeader();
  if (yields_leadership_) RequestThread();
}

void SocketLoop::WakeLeader() {
  const uint64_t one = 1;
  // Cannot fail: the counter is far from its maximum.
  (void)!write(wake_.get(), &one, sizeof(one));
}

void SocketLoop::RequestThread() {
  is_thread_wanted_ = true;
  if (yields_leadership_) thread_wakeup_.Wake();
}

void SocketLoop::RunPosted() {
  std::vector<absl::AnyInvocable<void() &&>> posted;
  {
    absl::MutexLock lock(&mu_);
    posted.swap(posted_);
  }
  for (auto& function : posted) std::move(function)();
}

void SocketLoop::PostAt(absl::Time at, absl::AnyInvocable<void() &&> function) {
  Post([this, at, function = std::move(function)]() mutable {
    due_.emplace(at, std::move(function));
  });
}

bool SocketLoop::IsOnLoop() const { return socket_loop_led_here == this; }

absl::Duration SocketLoop::Lag() const {
  const int64_t since = busy_since_;
  return since == 0 ? absl::ZeroDuration() : SteadyClock().CoarseNow() - absl::FromUnixNanos(since);
}

int SocketLoop::RunDue() {
  const absl::Time now = SteadyClock().Now();
  while (!due_.empty() && due_.begin()->first <= now) {
    auto next = due_.extract(due_.begin());
    std::move(next.mapped())();
  }
  if (due_.empty()) return -1;
  // One millisecond later, so that the timer is due when it wakes.
  const int64_t left = absl::ToInt64Milliseconds(due_.begin()->first - now) + 1;
  return static_cast<int>(std::min<int64_t>(left, std::numeric_limits<int>::max()));
}

bool SocketLoop::IsEnding() {
  absl::MutexLock lock(&mu_);
  return is_ending_;
}

bool SocketLoop::TryLead() {
  if (is_led_.exchange(true)) return false;
  socket_loop_led_here = this;
  return true;
}

void SocketLoop::StopLeading() {
  socket_loop_led_here = nullptr;
  is_led_ = false;
}

int SocketLoop::Wait(epoll_event* events, int timeout_ms) {
  const absl::Time began = SteadyClock().Now();
  int count = 0;
  if (is_worth_polling_ && timeout_ms != 0) {
    do {
      count = epoll_wait(epoll_.get(), events, kMaxEvents, 0);
      if (count > 0) return count;
      sched_yield();
    } while (SteadyClock().Now() - began < kBusyPoll);
  }
  count = epoll_wait(epoll_.get(), events, kMaxEvents, timeout_ms);
  is_worth_polling_ = count > 0 && SteadyClock().Now() - began < kBusyPoll;
  return count;
}

void SocketLoop::RunOnce() {
  epoll_event events[kMaxEvents];
  const int timeout = RunDue();
  busy_since_ = 0;
  const int count = Wait(events, timeout);
  busy_since_ = absl::ToUnixNanos(SteadyClock().CoarseNow());
  bool is_woken = false;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == nullptr) {
      is_woken = true;
      continue;
    }
    auto* const entry = static_cast<Entry*>(events[i].data.ptr);
    const auto is_it = [entry](const auto& removed) { return removed.get() == entry; };
    if (std::any_of(removed_.begin(), removed_.end(), is_it)) continue;
    entry->source->OnReady(events[i].events);
  }
  if (is_woken) {
    uint64_t unused;
    (void)!read(wake_.get(), &unused, sizeof(unused));
    RunPosted();
  }
  removed_.clear();
  busy_since_ = 0;
}

void SocketLoop::OnNotified(absl::Notification& notification) {
  awaited_.fetch_sub(1);
  notification.Notify();
  if (socket_loop_led_here == this) return;
  // The waiter may be leading, blocked in the kernel.
  FullFence();
  if (is_led_by_caller_) WakeLeader();
}

void SocketLoop::WaitFor(absl::Notification& notification) {
  if (notification.HasBeenNotified()) return;
  const bool is_alone = awaited_ <= 1;
  bool leads = is_alone && TryLead();
  if (is_alone && !leads) {
    caller_came_ = true;
    // The previous leader may have left before it could see the flag.
    leads = TryLead();
  }
  if (!leads) {
    if (!is_alone && yields_leadership_) RequestThread();
    return notification.WaitForNotification();
  }
  caller_came_ = false;
  caller_lead_count_.fetch_add(1);
  is_led_by_caller_ = true;
  FullFence();
  while (!notification.HasBeenNotified()) RunOnce();
  is_led_by_caller_ = false;
  StopLeading();
  if (awaited_ > 0) is_thread_wanted_ = true;
  if (sleeps_long_ || is_thread_wanted_) thread_wakeup_.Wake();
}

bool SocketLoop::ShouldYieldLeadership() {
  if (is_thread_wanted_) {
    is_thread_wanted_ = false;
    caller_came_ = false;
    return false;
  }
  return caller_came_ && awaited_ == 0 && caller_came_.exchange(false);
}

void SocketLoop::YieldLeadership() {
  yields_leadership_ = true;
  bool has_looked = false;
  uint32_t seen_count = 0;
  while (!IsEnding()) {
    const uint32_t turn = thread_wakeup_.turn();
    const uint32_t count = caller_lead_count_;
    const bool is_new = !has_looked || count != seen_count;
    const bool is_led = is_led_;
    if (!is_led) {
      if (is_thread_wanted_ || caller_came_ || awaited_ > 1) break;
      // A caller that has led for long may come back.
      if (!is_new && !sleeps_long_) break;
    }
    sleeps_long_ = is_led && !is_new;
    // A leader that left before the flag was set has not seen it.
    const bool is_long = sleeps_long_ && is_led_;
    thread_wakeup_.WaitUntil(turn, SteadyClock().Now() + (is_long ? kLongSleep : kTick));
    seen_count = count;
    has_looked = true;
  }
  sleeps_long_ = false;
  yields_leadership_ = false;
}

void SocketLoop::Run() {
  while (!IsEnding()) {
    if (!TryLead()) {
      // A caller has taken the lead meanwhile.
      YieldLeadership();
      continue;
    }
    do {
      RunOnce();
    } while (!IsEnding() && !ShouldYieldLeadership());
    StopLeading();
    YieldLeadership();
  }
  while (!TryLead()) thread_wakeup_.WaitUntil(thread_wakeup_.turn(), SteadyClock().Now() + kTick);
  RunPosted();
  std::vector<std::shared_ptr<LoopSource>> sources;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, entry] : sources_) sources.push_back(entry->source);
  }
  for (const auto& source : sources) source->OnLoopEnd();
  removed_.clear();
  due_.clear();
  StopLeading();
}

}  // namespace ferry
