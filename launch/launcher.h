// SPDX-License-Identifier: Apache-2.0
// Launch: what `ferry run` does on one machine, from the first fork to the exit status.
#ifndef FERRY_LAUNCH_LAUNCHER_H_
#define FERRY_LAUNCH_LAUNCHER_H_

#include <cstdio>

#include "absl/status/statusor.h"

#include "launch/launch_environment.h"

namespace ferry {

// Starts options.local_count processes, each in a process group of its own, and returns the exit
// status for the launcher once all of them, and whatever descends from them, are gone:
//   0 when all ended with 0 and nothing stopped them; the status of the process that failed first,
//   128 + the number for a signal, when that came before any signal to the launcher; else 128 + the
//   number of the signal that stopped them, however they ended.
// options.stdin_rank reads this process's standard input: the descriptor itself, or, if that is a
// terminal, what is typed there while this process is in the foreground.
// Lines of the processes go to `out` and `err` with "[rank] " before them, or bytes as they come;
// what the launcher itself has to say goes to `err` after "ferry run: ".
//
// When a process fails, it is named with its last lines, and the others get SIGTERM.
// SIGINT, SIGTERM, SIGHUP and SIGQUIT to this process are passed on; so are SIGUSR1 and SIGUSR2,
// which stop nothing. In both cases of stopping, what is left after options.grace gets SIGKILL; a
// second SIGINT, SIGTERM, SIGHUP or SIGQUIT does that at once. SIGTSTP, SIGTTIN and SIGTTOU stop
// the processes and then this one, as Ctrl-Z is meant to; SIGCONT continues all of them. When `out`
// or `err` cannot be written any more, the processes are stopped as well; the status is then 1, or
// that of SIGPIPE, 141, when the reader has gone. What the processes leave behind when all have
// ended is stopped too, daemons in sessions of their own included. If this process is killed, the
// kernel kills the processes that it started (but not their descendants).
//
// Blocks the calling thread, which is also the one that starts and waits. One at a time in a
// process, for it owns the process's signal handlers meanwhile; other threads may run.
//   Errors: INVALID_ARGUMENT for the options; NOT_FOUND when the command is not there;
//   FAILED_PRECONDITION when it is no program, or another Launch runs; RESOURCE_EXHAUSTED. After an
//   error, no process is left.
absl::StatusOr<int> Launch(const LaunchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace ferry

#endif  // FERRY_LAUNCH_LAUNCHER_H_
