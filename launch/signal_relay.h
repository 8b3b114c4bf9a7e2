// SPDX-License-Identifier: Apache-2.0
// SignalRelay: turns the signals a launcher cares about into bytes that poll() sees.
#ifndef FERRY_LAUNCH_SIGNAL_RELAY_H_
#define FERRY_LAUNCH_SIGNAL_RELAY_H_

#include <signal.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/unique_fd.h"

namespace ferry {

// While it lives, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, and the signals of
// job control, SIGTSTP, SIGTTIN, SIGTTOU and SIGCONT, of this process arrive at fd(), whichever
// thread they are delivered to, and SIGPIPE is ignored. A signal that was ignored before, as under
// nohup, stays so. Handlers instead of signalfd, because the other threads of the process (a
// coordinator's, say) do not block these signals. Signals belong to the process: there can be one
// relay at a time. Used on the thread that created it, whose signal mask it unblocks and restores.
class SignalRelay final {
 public:
  // Errors: FAILED_PRECONDITION when there is a relay already; INTERNAL when there are no pipes.
  static absl::StatusOr<std::unique_ptr<SignalRelay>> Create();
  ~SignalRelay();

  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  // Readable while Take() has something to give.
  int fd() const { return read_end_.get(); }

  // The signals since the last call, in order.
  std::vector<int> Take();

  // For a forked child before its exec: default handling, save for what was ignored before; nothing
  // blocked. Async-signal-safe.
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
