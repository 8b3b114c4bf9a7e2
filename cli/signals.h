// SPDX-License-Identifier: Apache-2.0
// BlockedSignals: signals as events to wait for, instead of interruptions.
#ifndef FERRY_CLI_SIGNALS_H_
#define FERRY_CLI_SIGNALS_H_

#include <atomic>
#include <csignal>
#include <initializer_list>
#include <memory>
#include <optional>

#include "absl/time/time.h"

#include "base/thread.h"
#include "base/unique_fd.h"

namespace ferry::cli {

// For a process that must exit soon after a signal, even if it is blocked.
struct EndAfterSignal {
  // Ends within a second of the signal, with a margin for a busy machine.
  absl::Duration timeout = absl::Milliseconds(800);
  // The exit status if the process has not ended by then.
  int exit_status = 1;
};

// Blocks the signals for the calling thread and all threads it starts. Create it first of all.
// Thread-safe.
class BlockedSignals final {
 public:
  // With `end`, a thread ("ferry-signals") ends the process that long after the first signal, with
  // a line on stderr, unless this was destroyed or LetThrough was called by then. This way a
  // coordinator that hangs cannot block a node that is leaving. Throws std::system_error if out of
  // file descriptors.
  explicit BlockedSignals(std::initializer_list<int> signals,
                          std::optional<EndAfterSignal> end = std::nullopt);
  // Discards pending signals: the process is about to end anyway.
  ~BlockedSignals();

  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  // Blocks until one of the signals arrives and returns it. Ignores Wake.
  int Wait();
  // Waits for one of the signals; returns nullopt on timeout, on Wake, or when `output_fd`, if
  // given, becomes writable or loses its reader; with `only_loss`, only the latter.
  std::optional<int> WaitFor(absl::Duration timeout, int output_fd = -1, bool only_loss = false);
  // Ends the current WaitFor, or else the next. Callable from any thread.
  void Wake();
  // Returns true once one of the signals was received.
  bool have_come() const { return have_come_.load(); }
  // Restores the default handling on the caller's thread: signals end the process again. For
  // operations that may block forever, once there is nothing left to clean up.
  void Unblock();

 private:
  // Forwards signals, and ends the process when the deadline has passed. Runs on the thread.
  void Keep(EndAfterSignal end);

  sigset_t set_;
  sigset_t before_;
  UniqueFd signal_fd_;
  UniqueFd wake_fd_;
  std::atomic<bool> have_come_ = false;
  std::atomic<bool> is_over_ = false;
  // With the thread only: the thread reads signal_fd_ and forwards each signal as a byte to
  // WaitFor.
  UniqueFd passed_on_;
  UniqueFd pass_on_;
  UniqueFd over_fd_;
  std::unique_ptr<Thread> thread_;
};

// "SIGTERM"
const char* SignalName(int signal);

}  // namespace ferry::cli

#endif  // FERRY_CLI_SIGNALS_H_
