// SPDX-License-Identifier: Apache-2.0
// Launch: `ferry run` on one machine, from the first fork to the exit status.
#ifndef FERRY_LAUNCH_LAUNCHER_H_
#define FERRY_LAUNCH_LAUNCHER_H_

#include <cstdio>

#include "absl/status/statusor.h"

#include "launch/launch_environment.h"

namespace ferry {

// Starts options.local_count processes, each in its own process group, and returns the launcher's
// exit status once all of them and their descendants have exited:
//   0 if all exited with 0 and nothing stopped them; the status of the first process that failed,
//   128 + the number for a signal, if it failed before any signal to the launcher; else 128 + the
//   number of the signal that stopped them, however they exited.
// options.stdin_rank reads this process's standard input: the descriptor itself, or, if that is a
// terminal, what is typed there while this process is in the foreground.
// Lines of the processes go to `out` and `err` with "[rank] " before them, or unchanged; messages
// of the launcher itself go to `err` after "ferry run: ".
//
// When a process fails, it is reported with its last lines, and the others get SIGTERM. SIGINT,
// SIGTERM, SIGHUP and SIGQUIT to this process are passed on; so are SIGUSR1 and SIGUSR2, which stop
// nothing. In both cases of stopping, remaining processes get SIGKILL after options.grace; a second
// SIGINT, SIGTERM, SIGHUP or SIGQUIT does that at once. SIGTSTP, SIGTTIN and SIGTTOU stop the
// processes and then this one, as for Ctrl-Z; SIGCONT continues all of them. When `out` or `err`
// cannot be written any more, the processes are stopped as well; the status is then 1, or that of
// SIGPIPE, 141, if the reader has gone. Descendants that remain when all processes have exited are
// stopped too, including daemons in their own sessions. If this process is killed, the kernel kills
// the processes that it started (but not their descendants).
//
// Blocks the calling thread, which also forks and waits for the processes. One at a time per
// process, since it owns the process's signal handlers meanwhile; other threads may run.
//   Errors: INVALID_ARGUMENT for the options; NOT_FOUND when the command does not exist;
//   FAILED_PRECONDITION when it is not a program, or another Launch is running; RESOURCE_EXHAUSTED.
//   After an error, no process is left.
absl::StatusOr<int> Launch(const LaunchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace ferry

#endif  // FERRY_LAUNCH_LAUNCHER_H_
