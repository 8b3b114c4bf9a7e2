// SPDX-License-Identifier: Apache-2.0
// SignalRelay: turns the launcher's signals into bytes on a pollable descriptor.
#ifndef FERRY_LAUNCH_SIGNAL_RELAY_H_
#define FERRY_LAUNCH_SIGNAL_RELAY_H_

#include <signal.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/unique_fd.h"

namespace ferry {

// While it exists, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, and the signals of
// job control, SIGTSTP, SIGTTIN, SIGTTOU and SIGCONT, of this process arrive at fd(), whichever
// thread they are delivered to, and SIGPIPE is ignored. A signal that was ignored before, as under
// nohup, stays ignored. Handlers instead of signalfd, because other threads of the process (a
// coordinator's, say) do not block these signals. Signals are per process: only one relay can exist
// at a time. Used on the thread that created it, whose signal mask it unblocks and restores.
class SignalRelay final {
 public:
  // Errors: FAILED_PRECONDITION when a relay already exists; INTERNAL when pipes cannot be created.
  static absl::StatusOr<std::unique_ptr<SignalRelay>> Create();
  ~SignalRelay();

  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  // Readable while signals are queued for Take().
  int fd() const { return read_end_.get(); }

  // Returns the signals since the last call, in order.
  std::vector<int> Take();

  // For a forked child before its exec: restores default handling, except for signals that were
  // ignored before, and unblocks all. Async-signal-safe.
  static void ResetInChild();

 private:
  SignalRelay(UniqueFd read_end, UniqueFd write_end);

  const UniqueFd read_end_;
  const UniqueFd write_end_;
  std::vector<std::pair<int, struct sigaction>> saved_actions_;
  sigset_t saved_mask_;
};

}  // namespace ferry

#endif  // FERRY_LAUNCH_SIGNAL_RELAY_H_
