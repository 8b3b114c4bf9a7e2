// SPDX-License-Identifier: Apache-2.0
// The exit status of a process, as a number and as text.
#ifndef FERRY_LAUNCH_EXIT_TEXT_H_
#define FERRY_LAUNCH_EXIT_TEXT_H_

#include <string>

namespace ferry {

// "SIGTERM"
std::string SignalName(int signal_number);

// Returns the exit status as a shell reports it: the status, or 128 + the number of the signal.
//   wait_status: as returned by waitpid.
int ExitStatus(int wait_status);

// "exited with status 3", "was killed by SIGSEGV (core dumped)".
std::string DescribeExit(int wait_status);

}  // namespace ferry

#endif  // FERRY_LAUNCH_EXIT_TEXT_H_
