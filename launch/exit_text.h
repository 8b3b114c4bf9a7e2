// SPDX-License-Identifier: Apache-2.0
// The end of a process, as a number and in words.
#ifndef FERRY_LAUNCH_EXIT_TEXT_H_
#define FERRY_LAUNCH_EXIT_TEXT_H_

#include <string>

namespace ferry {

// "SIGTERM"
std::string SignalName(int signal_number);

// As a shell has it: the status, or 128 + the number of the signal.
//   wait_status: as waitpid gives it.
int ExitStatus(int wait_status);

// "exited with status 3", "was killed by SIGSEGV (core dumped)".
std::string DescribeExit(int wait_status);

}  // namespace ferry

#endif  // FERRY_LAUNCH_EXIT_TEXT_H_
