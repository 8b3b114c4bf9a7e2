// SPDX-License-Identifier: Apache-2.0
// OwnJob: a coordinator and workers of this program, for verbs that were given no job.
#ifndef FERRY_CLI_OWN_JOB_H_
#define FERRY_CLI_OWN_JOB_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "cli/tool_process.h"

namespace ferry::cli {

// Processes of this machine, which end with it. Not thread-safe.
class OwnJob final {
 public:
  // All have joined when it returns. They use no GPUs: two nodes may not share one.
  static absl::StatusOr<std::unique_ptr<OwnJob>> Start(int workers);

  // HOST:PORT of the coordinator.
  const std::string& coordinator() const { return coordinator_; }

 private:
  OwnJob() = default;

  std::string coordinator_;
  // The coordinator first: it ends last.
  std::vector<std::unique_ptr<ToolProcess>> processes_;
};

}  // namespace ferry::cli

#endif  // FERRY_CLI_OWN_JOB_H_
