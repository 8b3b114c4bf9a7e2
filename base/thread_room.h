// SPDX-License-Identifier: Apache-2.0
// Checks whether more threads can be started, and names what limits them.
#ifndef FERRY_BASE_THREAD_ROOM_H_
#define FERRY_BASE_THREAD_ROOM_H_

#include <string>

#include "absl/status/status.h"

namespace ferry {

// "processes and threads (ulimit -u) 4096, ..., and the control group's pids.max 100
// (/sys/fs/cgroup/pids.max)": a suffix for an error.
std::string ThreadLimits();

// Starts `count` threads and ends them again. Call it before using a library that aborts the
// process when it cannot create a thread.
//   Errors: RESOURCE_EXHAUSTED with the number of threads that could be started, and ThreadLimits.
absl::Status CheckThreadRoom(int count);

}  // namespace ferry

#endif  // FERRY_BASE_THREAD_ROOM_H_
