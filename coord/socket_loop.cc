// SPDX-License-Identifier: Apache-2.0
// Waiting in epoll.
#include "coord/socket_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"

namespace ferry::coord {
namespace {

constexpr int kMaxEvents = 256;

absl::Status OutOfResources(absl::string_view what, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": ", std::strerror(error),
                   error == EMFILE || error == ENFILE ? " (raise `ulimit -n`)" : ""));
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
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  thread_->Join();
  thread_ = nullptr;
}

absl::Status SocketLoop::Add(std::shared_ptr<SocketSource> source, int fd, uint32_t events) {
  SocketSource* const key = source.get();
  epoll_event event = {};
  event.events = events;
  event.data.ptr = key;
  absl::MutexLock lock(&mu_);
  if (is_ending_) return absl::CancelledError("the loop has ended");
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return OutOfResources("epoll_ctl", errno);
  }
  sources_[key] = std::move(source);
  return absl::OkStatus();
}

void SocketLoop::Watch(SocketSource& source, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.ptr = &source;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void SocketLoop::Remove(SocketSource& source, int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  absl::MutexLock lock(&mu_);
  const auto found = sources_.find(&source);
  if (found == sources_.end()) return;
  removed_.push_back(std::move(found->second));
  sources_.erase(found);
}

void SocketLoop::Post(absl::AnyInvocable<void() &&> function) {
  {
    absl::MutexLock lock(&mu_);
    posted_.push_back(std::move(function));
    if (posted_.size() > 1) return;  // Whoever came first has woken the loop.
  }
  const uint64_t one = 1;
  // Cannot fail: the counter is far from its end.
  (void)!write(wake_.get(), &one, sizeof(one));
}

void SocketLoop::RunPosted() {
  std::vector<absl::AnyInvocable<void() &&>> posted;
  {
    absl::MutexLock lock(&mu_);
    posted.swap(posted_);
  }
  for (auto& function : posted) std::move(function)();
}

void SocketLoop::PostAfter(absl::Duration delay, absl::AnyInvocable<void() &&> function) {
  Post([this, when = SteadyClock().Now() + delay, function = std::move(function)]() mutable {
    due_.emplace(when, std::move(function));
  });
}

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
  // The whole millisecond after it, so that it is due then.
  const int64_t left = absl::ToInt64Milliseconds(due_.begin()->first - now) + 1;
  return static_cast<int>(std::min<int64_t>(left, std::numeric_limits<int>::max()));
}

void SocketLoop::Run() {
  epoll_event events[kMaxEvents];
  const auto is_ending = [this] {
    absl::MutexLock lock(&mu_);
    return is_ending_;
  };
  while (!is_ending()) {
    const int timeout = RunDue();
    busy_since_ = 0;
    const int count = epoll_wait(epoll_.get(), events, kMaxEvents, timeout);
    busy_since_ = absl::ToUnixNanos(SteadyClock().CoarseNow());
    bool is_woken = false;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.ptr == nullptr) {
        is_woken = true;
        continue;
      }
      auto* const source = static_cast<SocketSource*>(events[i].data.ptr);
      const auto is_it = [source](const auto& removed) { return removed.get() == source; };
      if (std::any_of(removed_.begin(), removed_.end(), is_it)) continue;
      source->OnReady(events[i].events);
    }
    if (is_woken) {
      uint64_t unused;
      (void)!read(wake_.get(), &unused, sizeof(unused));
      RunPosted();
    }
    removed_.clear();
  }
  RunPosted();
  absl::flat_hash_map<SocketSource*, std::shared_ptr<SocketSource>> sources;
  {
    absl::MutexLock lock(&mu_);
    sources = sources_;
  }
  for (const auto& [key, source] : sources) source->OnLoopEnd();
  removed_.clear();
  due_.clear();
}

}  // namespace ferry::coord
