// SPDX-License-Identifier: Apache-2.0
// A signalfd for the signals, an eventfd for wake-ups, and poll over both.
#include "cli/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <system_error>

#include "base/clock.h"

namespace ferry::cli {
namespace {

// This avoids stdio, whose locks a blocked thread may hold.
[[noreturn]] void EndProcess(int signal, const EndAfterSignal& end) {
  char line[160];
  const int bytes = std::snprintf(line, sizeof(line),
                                  "ferry: stopped by %s; pending operations did not end in time\n",
                                  SignalName(signal));
  pollfd output = {STDERR_FILENO, POLLOUT, 0};
  const bool is_read = poll(&output, 1, 0) == 1 && (output.revents & POLLOUT) != 0;
  if (bytes > 0 && is_read && end.exit_status != 0) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, static_cast<size_t>(bytes));
  }
  _exit(end.exit_status);
}

}  // namespace

BlockedSignals::BlockedSignals(std::initializer_list<int> signals,
                               std::optional<EndAfterSignal> end) {
  sigemptyset(&set_);
  for (const int signal : signals) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, &before_);
  signal_fd_ = UniqueFd(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  bool is_ready = signal_fd_.valid() && wake_fd_.valid();
  if (is_ready && end) {
    int ends[2] = {-1, -1};
    over_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    is_ready = over_fd_.valid() && pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0;
    passed_on_ = UniqueFd(ends[0]);
    pass_on_ = UniqueFd(ends[1]);
  }
  if (is_ready) {
    if (end) thread_ = std::make_unique<Thread>("ferry-signals", [this, end] { Keep(*end); });
    return;
  }
  // Happens only at process start, where there is no fallback.
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  throw std::system_error(error, std::generic_category(),
                          "cannot listen for signals (signalfd, eventfd; see ulimit -n)");
}

BlockedSignals::~BlockedSignals() {
  is_over_ = true;
  if (thread_ != nullptr) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(over_fd_.get(), &one, sizeof(one));
    thread_->Join();
  }
  constexpr timespec kNoWait = {};
  while (sigtimedwait(&set_, nullptr, &kNoWait) > 0) {
  }
  Unblock();
}

void BlockedSignals::Unblock() {
  is_over_ = true;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void BlockedSignals::Keep(EndAfterSignal end) {
  std::optional<absl::Time> deadline;
  int first = 0;
  while (true) {
    int timeout_ms = -1;
    if (deadline) {
      const absl::Duration left = *deadline - SteadyClock().Now();
      timeout_ms = static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(left), 0)) + 1;
    }
    pollfd polled[] = {{signal_fd_.get(), POLLIN, 0}, {over_fd_.get(), POLLIN, 0}};
    poll(polled, 2, timeout_ms);
    if (polled[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      const auto byte = static_cast<unsigned char>(info.ssi_signo);
      have_come_ = true;
      [[maybe_unused]] const ssize_t written = write(pass_on_.get(), &byte, 1);
      if (!deadline) {
        first = static_cast<int>(info.ssi_signo);
        deadline = SteadyClock().Now() + end.timeout;
      }
      continue;
    }
    if (!deadline || SteadyClock().Now() < *deadline) continue;
    // The operation has completed, and only printing its result is left, which a signal interrupts
    // without this thread.
    if (is_over_) return;
    EndProcess(first, end);
  }
}

int BlockedSignals::Wait() {
  while (true) {
    if (const std::optional<int> signal = WaitFor(absl::InfiniteDuration())) return *signal;
  }
}

std::optional<int> BlockedSignals::WaitFor(absl::Duration timeout, int output_fd, bool only_loss) {
  const absl::Time deadline = SteadyClock().Now() + timeout;
  while (true) {
    if (thread_ != nullptr) {
      unsigned char byte = 0;
      if (read(passed_on_.get(), &byte, 1) == 1) return byte;
    } else {
      signalfd_siginfo info;
      if (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
        have_come_ = true;
        return static_cast<int>(info.ssi_signo);
      }
    }
    uint64_t count = 0;
    if (read(wake_fd_.get(), &count, sizeof(count)) == sizeof(count)) return std::nullopt;
    const absl::Duration left = deadline - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) return std::nullopt;
    const int timeout_ms =
        left > absl::Hours(1) ? 3'600'000 : static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    const short events = only_loss ? 0 : POLLOUT;
    pollfd polled[] = {{thread_ != nullptr ? passed_on_.get() : signal_fd_.get(), POLLIN, 0},
                       {wake_fd_.get(), POLLIN, 0},
                       {output_fd, events, 0}};
    poll(polled, 3, timeout_ms);
    // The other two descriptors are detected by reading them.
    if (polled[0].revents == 0 && polled[2].revents != 0) return std::nullopt;
  }
}

void BlockedSignals::Wake() {
  const uint64_t one = 1;
  // Fails only if the counter is saturated, and then a wake-up is pending anyway.
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
