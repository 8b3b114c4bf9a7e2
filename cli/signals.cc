// SPDX-License-Identifier: Apache-2.0
// A signalfd for the signals, an eventfd for waking, and poll over both.
#include "cli/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>

#include "base/clock.h"

namespace ferry::cli {

BlockedSignals::BlockedSignals(std::initializer_list<int> signals) {
  sigemptyset(&set_);
  for (const int signal : signals) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, &before_);
  signal_fd_ = UniqueFd(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (signal_fd_.valid() && wake_fd_.valid()) return;
  // At the very beginning of a process; there is nothing to fall back on.
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  throw std::system_error(error, std::generic_category(),
                          "cannot listen for signals (signalfd, eventfd; see ulimit -n)");
}

BlockedSignals::~BlockedSignals() {
  constexpr timespec kNoWait = {};
  while (sigtimedwait(&set_, nullptr, &kNoWait) > 0) {
  }
  LetThrough();
}

void BlockedSignals::LetThrough() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int BlockedSignals::Wait() {
  while (true) {
    if (const std::optional<int> signal = WaitFor(absl::InfiniteDuration())) return *signal;
  }
}

std::optional<int> BlockedSignals::WaitFor(absl::Duration timeout, int output_fd, bool only_loss) {
  const absl::Time deadline = SteadyClock().Now() + timeout;
  while (true) {
    signalfd_siginfo info;
    if (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      return static_cast<int>(info.ssi_signo);
    }
    uint64_t count = 0;
    if (read(wake_fd_.get(), &count, sizeof(count)) == sizeof(count)) return std::nullopt;
    const absl::Duration left = deadline - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) return std::nullopt;
    const int timeout_ms =
        left > absl::Hours(1) ? 3'600'000 : static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    const short events = only_loss ? 0 : POLLOUT;
    pollfd polled[] = {
        {signal_fd_.get(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}, {output_fd, events, 0}};
    poll(polled, 3, timeout_ms);
    // The other two are found by reading.
    if (polled[0].revents == 0 && polled[2].revents != 0) return std::nullopt;
  }
}

void BlockedSignals::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is at its end, and then it is awake anyway.
  [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof(one));
}

const char* SignalName(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "a signal";
  }
}

}  // namespace ferry::cli
