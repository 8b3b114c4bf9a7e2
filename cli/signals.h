// SPDX-License-Identifier: Apache-2.0
// Signals as something to wait for, instead of something that interrupts.
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
  // Within a second of the signal, with some time to spare for a busy machine.
  absl::Duration timeout = absl::Milliseconds(800);
  // The exit status if the process has not ended by then.
  int exit_status = 1;
};

// Blocks the signals for the calling thread and for all that it starts. Make it first of all.
// Thread-safe.
class BlockedSignals final {
 public:
  // With `end`, the process exits that long after the first signal, with a line on stderr, unless
  // this was destroyed or LetThrough was called by then, so that a node that leaves is not blocked
  // by a coordinator that hangs. A thread ("ferry-signals") does so. Throws std::system_error when
  // there are no descriptors left.
  explicit BlockedSignals(std::initializer_list<int> signals,
                          std::optional<EndAfterSignal> end = std::nullopt);
  // Signals that came meanwhile are over with it: whoever stops listening is about to end.
  ~BlockedSignals();

  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  // Waits for one of them and returns it. A Wake does not count.
  int Wait();
  // Waits for one of them; nothing when the time is over, somebody called Wake, or `output_fd`, if
  // there is one, can be written to or has lost its reader; with `only_loss`, only the latter.
  std::optional<int> WaitFor(absl::Duration timeout, int output_fd = -1, bool only_loss = false);
  // Ends a WaitFor, the present one or the next. From any thread.
  void Wake();
  // Returns true once one of the signals was received.
  bool have_come() const { return have_come_.load(); }
  // They end the process again, from now on and where the caller's thread is: for what may block
  // for ever, once there is nothing left to be undone.
  void LetThrough();

 private:
  // Forwards signals, and ends the process when the deadline has passed. Runs on the thread.
  void Keep(EndAfterSignal end);

  sigset_t set_;
  sigset_t before_;
  UniqueFd signal_fd_;
  UniqueFd wake_fd_;
  std::atomic<bool> have_come_ = false;
  std::atomic<bool> is_over_ = false;
  // With the thread only: it reads signal_fd_, and WaitFor what it writes, a byte for each.
  UniqueFd passed_on_;
  UniqueFd pass_on_;
  UniqueFd over_fd_;
  std::unique_ptr<Thread> thread_;
};

// "SIGTERM"
const char* SignalName(int signal);

}  // namespace ferry::cli

#endif  // FERRY_CLI_SIGNALS_H_
