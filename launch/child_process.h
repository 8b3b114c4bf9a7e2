// SPDX-License-Identifier: Apache-2.0
// SpawnChild: starts one process in its own process group, with its output on pipes.
#ifndef FERRY_LAUNCH_CHILD_PROCESS_H_
#define FERRY_LAUNCH_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "base/unique_fd.h"

namespace ferry {

// A started process; its owner must wait for `pid`. The descriptors are non-blocking.
struct ChildProcess {
  pid_t pid = -1;  // also the id of its process group
  UniqueFd stdout_fd;
  UniqueFd stderr_fd;
};

// Returns the file that `program` refers to: `program` itself if it has a slash, else its first
// executable in `path`, a list as in PATH.
//   Errors: NOT_FOUND; FAILED_PRECONDITION when it is a directory or cannot be executed.
absl::StatusOr<std::string> FindProgram(const std::string& program, absl::string_view path);

// Starts `file` with `arguments` (the program's name first) and exactly `environment`. The child
// leads a new process group, reads `stdin_fd` (/dev/null if negative), has default signal handling,
// and is killed when the calling thread ends, for any reason: call it on the thread that waits for
// the child. Returns once exec has succeeded. Safe in a multithreaded process.
//   Errors: RESOURCE_EXHAUSTED when there are no processes or descriptors left; FAILED_PRECONDITION
//   when the kernel rejects the file, with its reason.
absl::StatusOr<ChildProcess> SpawnChild(const std::string& file,
                                        const std::vector<std::string>& arguments,
                                        const std::vector<std::string>& environment,
                                        int stdin_fd = -1);

}  // namespace ferry

#endif  // FERRY_LAUNCH_CHILD_PROCESS_H_
