// SPDX-License-Identifier: Apache-2.0
// Signals as something to wait for, instead of something that interrupts.
#ifndef FERRY_CLI_SIGNALS_H_
#define FERRY_CLI_SIGNALS_H_

#include <csignal>
#include <initializer_list>
#include <optional>

#include "absl/time/time.h"

#include "base/unique_fd.h"

namespace ferry::cli {

// Blocks the signals for the calling thread and for all that it starts. Make it first of all.
// Thread-safe.
class BlockedSignals final {
 public:
  // Throws std::system_error when there are no descriptors left.
  explicit BlockedSignals(std::initializer_list<int> signals);
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
  // They end the process again, from now on and where the caller's thread is: for what may block
  // for ever, once there is nothing left to be undone.
  void LetThrough();

 private:
  sigset_t set_;
  sigset_t before_;
  UniqueFd signal_fd_;
  UniqueFd wake_fd_;
};

// "SIGTERM"
const char* SignalName(int signal);

}  // namespace ferry::cli

#endif  // FERRY_CLI_SIGNALS_H_
