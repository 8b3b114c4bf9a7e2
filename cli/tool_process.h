// SPDX-License-Identifier: Apache-2.0
// ToolProcess: a ferry process started by a verb, and its output lines.
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

// Whether the process inherits FERRY_ variables: a node of another job must not.
enum class FerryVariables { kLeaveOut, kPassOn };

// Runs this program with other arguments; the destructor kills it. Not thread-safe.
class ToolProcess final {
 public:
  //   name: for messages, "worker 2".
  //   cuda_visible_devices: set in its environment, unless absent.
  static absl::StatusOr<std::unique_ptr<ToolProcess>> Start(
      std::string name, std::vector<std::string> arguments,
      std::optional<std::string> cuda_visible_devices,
      FerryVariables ferry_variables = FerryVariables::kLeaveOut);
  // A process that cannot be killed, because a driver hangs, is abandoned after five seconds.
  ~ToolProcess();

  ToolProcess(const ToolProcess&) = delete;
  ToolProcess& operator=(const ToolProcess&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return child_.pid; }

  // Returns the next line of its stdout. Its stderr is kept for messages, and copied to ours if
  // `verbose`.
  //   Errors: DEADLINE_EXCEEDED; ABORTED if the process ends before, with its status and the end of
  //   its stderr.
  absl::StatusOr<std::string> ReadLine(absl::Time deadline, bool verbose);

  void Signal(int signal);
  // Waits for it to end. Errors: DEADLINE_EXCEEDED; ABORTED if it ends with a status other than 0.
  absl::Status WaitForExit(absl::Time deadline);

 private:
  ToolProcess(std::string name, ChildProcess child)
      : name_(std::move(name)), child_(std::move(child)) {}
  // Reads available output into lines_ and last_error_lines_; returns true at the end of stdout.
  bool ReadAvailable(bool verbose);
  void ReadErrors(bool verbose);
  absl::Status Ended(int wait_status) const;

  const std::string name_;
  ChildProcess child_;
  bool is_reaped_ = false;
  std::string partial_;
  std::deque<std::string> lines_;
  std::string last_error_lines_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_TOOL_PROCESS_H_
