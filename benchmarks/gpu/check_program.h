// SPDX-License-Identifier: Apache-2.0
// WatchProgram and RunProgram: another program, what it writes, and how it ends, within a time.
#ifndef FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_
#define FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ferry::check {

// Runs a program of this process's environment, both streams in one. A program with a slash is a
// file, else it is looked for in PATH. Returns its wait status.
//   on_output: hears what it writes, as it comes.
//   deadline: by when it is killed; asked again and again, since it may move.
//   Errors: NOT_FOUND; DEADLINE_EXCEEDED it was killed.
absl::StatusOr<int> WatchProgram(const std::vector<std::string>& arguments,
                                 const std::function<void(absl::string_view)>& on_output,
                                 const std::function<absl::Time()>& deadline);

struct ProgramResult {
  // As waitpid gives it.
  int wait_status = 0;
  // Both streams; the last of it when it is long.
  std::string output;
};

// The same, for what comes to an end and says little.
//   Errors: NOT_FOUND; DEADLINE_EXCEEDED, with its last words.
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& arguments,
                                         absl::Time deadline);

}  // namespace ferry::check

#endif  // FERRY_BENCHMARKS_GPU_CHECK_PROGRAM_H_
