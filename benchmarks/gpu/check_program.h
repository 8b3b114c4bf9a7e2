// SPDX-License-Identifier: Apache-2.0
// WatchProgram and RunProgram: run another program with a deadline, and return its output and exit.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_
#define FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry::check {

// Runs a program in this process's environment, with both streams in one. A program with a slash is
// a file, else it is searched for in PATH. Returns its wait status.
//   on_output: called with its output, as it arrives.
//   deadline: when it is killed; evaluated repeatedly, since it may move.
//   Errors: NOT_FOUND; DEADLINE_EXCEEDED it was killed.
absl::StatusOr<int> WatchProgram(const std::vector<std::string>& arguments,
                                 const std::function<void(absl::string_view)>& on_output,
                                 const std::function<absl::Time()>& deadline);

struct ProgramResult {
  // The status of waitpid.
  int wait_status = 0;
  // Both streams; the last of it when it is long.
  std::string output;
};

// The same, for short programs with little output.
//   Errors: NOT_FOUND; DEADLINE_EXCEEDED, with its last output.
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& arguments,
                                         absl::Time deadline);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_
