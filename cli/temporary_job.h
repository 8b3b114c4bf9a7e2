// SPDX-License-Identifier: Apache-2.0
// TemporaryJob: a coordinator and workers started by this program, for verbs that were given no
// job.
#ifndef FERRY_CLI_TEMPORARY_JOB_H_
#define FERRY_CLI_TEMPORARY_JOB_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "cli/tool_process.h"

namespace ferry::cli {

// Child processes on this machine, ended by the destructor. Not thread-safe.
class TemporaryJob final {
 public:
  // Returns once all have joined. They use no GPUs, because two nodes may not share one.
  static absl::StatusOr<std::unique_ptr<TemporaryJob>> Start(int workers);

  // HOST:PORT of the coordinator.
  const std::string& coordinator() const { return coordinator_; }

 private:
  TemporaryJob() = default;

  std::string coordinator_;
  // The coordinator is first, so that it ends last.
  std::vector<std::unique_ptr<ToolProcess>> processes_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_TEMPORARY_JOB_H_
