// SPDX-License-Identifier: Apache-2.0
// RunProgram: another program, what it wrote, and how it ended, within a time.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_
#define FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ferry::check {

struct ProgramResult {
  // As waitpid gives it.
  int wait_status = 0;
  // Both streams; the last of it when it is long.
  std::string output;
};

// Of this process's environment. A program with a slash is a file, else it is looked for in PATH.
//   Errors: NOT_FOUND; DEADLINE_EXCEEDED, with its last words, after which it is killed.
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& arguments,
                                         absl::Time deadline);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_
