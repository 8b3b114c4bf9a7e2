// SPDX-License-Identifier: Apache-2.0
// Names of signals from the C library.
#include "launch/exit_text.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"

namespace ferry {

std::string SignalName(int signal_number) {
  const char* name = sigabbrev_np(signal_number);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal_number);
}

int ExitStatus(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string DescribeExit(int wait_status) {
  if (!WIFSIGNALED(wait_status)) {
    return absl::StrCat("exited with status ", WEXITSTATUS(wait_status));
  }
  return absl::StrCat("was killed by ", SignalName(WTERMSIG(wait_status)),
                      WCOREDUMP(wait_status) ? " (core dumped)" : "",
                      WTERMSIG(wait_status) == SIGKILL ? " (often the out-of-memory killer)" : "");
}

}  // namespace ferry
