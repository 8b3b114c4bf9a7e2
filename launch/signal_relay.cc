// SPDX-License-Identifier: Apache-2.0
// SignalRelay: signal handlers that write to a pipe.
#include "launch/signal_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/file_limit.h"

namespace ferry {
namespace {

constexpr int kRelayed[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,
                            SIGCHLD, SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT};

// A signal handler can find its relay only through a global.
std::atomic<int> relay_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void Relay(int signal_number) {
  const int saved_errno = errno;
  const unsigned char byte = static_cast<unsigned char>(signal_number);
  // A full pipe loses the byte, but it then holds 64 Ki unread bytes, so the reader wakes anyway.
  [[maybe_unused]] const ssize_t written = write(relay_fd.load(), &byte, 1);
  errno = saved_errno;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalRelay>> SignalRelay::Create() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe2: ", ErrorWithFileLimit(errno)));
  }
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  int none = -1;
  if (!relay_fd.compare_exchange_strong(none, write_end.get())) {
    return absl::FailedPreconditionError("this process relays its signals already");
  }
  return std::unique_ptr<SignalRelay>(new SignalRelay(std::move(read_end), std::move(write_end)));
}

SignalRelay::SignalRelay(UniqueFd read_end, UniqueFd write_end)
    : read_end_(std::move(read_end)), write_end_(std::move(write_end)) {
  sigset_t relayed;
  sigemptyset(&relayed);
  for (const int signal_number : kRelayed) {
    struct sigaction old;
    sigaction(signal_number, nullptr, &old);
    // If SIGCHLD is ignored, exited children cannot be waited for.
    if (old.sa_handler == SIG_IGN && signal_number != SIGCHLD) continue;
    struct sigaction action = {};
    action.sa_handler = Relay;
    // With SA_RESTART, SIGTTIN and SIGTTOU would be raised again by each restarted read or write.
    const bool is_refusal = signal_number == SIGTTIN || signal_number == SIGTTOU;
    action.sa_flags = is_refusal ? 0 : SA_RESTART;
    sigaction(signal_number, &action, nullptr);
    saved_actions_.emplace_back(signal_number, old);
    sigaddset(&relayed, signal_number);
  }
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction old_pipe;
  sigaction(SIGPIPE, &ignore, &old_pipe);
  saved_actions_.emplace_back(SIGPIPE, old_pipe);
  pthread_sigmask(SIG_UNBLOCK, &relayed, &saved_mask_);
}

SignalRelay::~SignalRelay() {
  pthread_sigmask(SIG_SETMASK, &saved_mask_, nullptr);
  for (const auto& [signal_number, action] : saved_actions_) {
    sigaction(signal_number, &action, nullptr);
  }
  relay_fd.store(-1);
}

std::vector<int> SignalRelay::Take() {
  std::vector<int> signals;
  unsigned char bytes[256];
  ssize_t count = 0;
  while ((count = read(read_end_.get(), bytes, sizeof(bytes))) > 0) {
    signals.insert(signals.end(), bytes, bytes + count);
  }
  return signals;
}

void SignalRelay::ResetInChild() {
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  for (const int signal_number : kRelayed) {
    struct sigaction now;
    sigaction(signal_number, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaction(signal_number, &by_default, nullptr);
  }
  sigaction(SIGPIPE, &by_default, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace ferry
