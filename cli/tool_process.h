// SPDX-License-Identifier: Apache-2.0
// ToolProcess: a ferry process that a verb has started, and the lines that it writes.
#ifndef FERRY_CLI_TOOL_PROCESS_H_
#define FERRY_CLI_TOOL_PROCESS_H_

#include <sys/types.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "launch/child_process.h"

namespace ferry::cli {

// Whether a process gets our FERRY_ variables: one that is a node of a job of its own must not.
enum class FerryVariables { kLeaveOut, kPassOn };

// Not thread-safe. Runs this very program with other arguments; kills it in the end.
class ToolProcess final {
 public:
  //   name: for messages, "worker 2".
  //   cuda_visible_devices: for its environment, unless absent.
  static absl::StatusOr<std::unique_ptr<ToolProcess>> Start(
      std::string name, std::vector<std::string> arguments,
      std::optional<std::string> cuda_visible_devices,
      FerryVariables ferry_variables = FerryVariables::kLeaveOut);
  // A process that the kernel cannot end, because a driver hangs, is left to it after five seconds.
  ~ToolProcess();

  ToolProcess(const ToolProcess&) = delete;
  ToolProcess& operator=(const ToolProcess&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return child_.pid; }

  // The next line of its stdout. Its stderr is kept for messages, and copied to ours if `verbose`.
  //   Errors: DEADLINE_EXCEEDED; ABORTED when the process ends before, with how and its last words.
  absl::StatusOr<std::string> ReadLine(absl::Time deadline, bool verbose);

  void Signal(int signal);
  // Waits for it to end. Errors: DEADLINE_EXCEEDED; ABORTED when it ends otherwise than with 0.
  absl::Status WaitForExit(absl::Time deadline);

 private:
  ToolProcess(std::string name, ChildProcess child)
      : name_(std::move(name)), child_(std::move(child)) {}
  // Takes what is there into lines_ and last_words_; whether stdout is at its end.
  bool ReadAvailable(bool verbose);
  void ReadErrors(bool verbose);
  absl::Status Ended(int wait_status) const;

  const std::string name_;
  ChildProcess child_;
  bool is_reaped_ = false;
  std::string partial_;
  std::deque<std::string> lines_;
  std::string last_words_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_TOOL_PROCESS_H_
