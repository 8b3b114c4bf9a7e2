// SPDX-License-Identifier: Apache-2.0
// Checks whether more threads can be started, and names what limits them.
#ifndef FERRY_BASE_THREAD_ROOM_H_
#define FERRY_BASE_THREAD_ROOM_H_

#include <string>

#include "absl/status/status.h"

namespace ferry {

// "processes and threads (ulimit -u) 4096, ..., and the control group's pids.max 100
// (/sys/fs/cgroup/pids.max)": for the end of an error.
std::string ThreadLimits();

// Starts `count` threads and ends them again. For libraries that end the process when they find no
// room for a thread: ask before they are used.
//   Errors: RESOURCE_EXHAUSTED with how many there was room for, and ThreadLimits.
absl::Status CheckThreadRoom(int count);

}  // namespace ferry

#endif  // FERRY_BASE_THREAD_ROOM_H_
