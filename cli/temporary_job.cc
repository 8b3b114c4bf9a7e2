// SPDX-License-Identifier: Apache-2.0
// Starts the processes and reads their addresses.
#include "cli/temporary_job.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "cli/progress.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kJobTimeout = absl::Minutes(1);
constexpr char kListening[] = "listening on ";

}  // namespace

absl::StatusOr<std::unique_ptr<TemporaryJob>> TemporaryJob::Start(int workers) {
  const Progress progress(absl::StrCat("starting a coordinator and ", workers, " workers"));
  const absl::Time deadline = SteadyClock().Now() + kJobTimeout;
  std::unique_ptr<TemporaryJob> job(new TemporaryJob());
  FERRY_ASSIGN_OR_RETURN(
      auto coordinator,
      ToolProcess::Start("the coordinator",
                         {"coordinator", absl::StrCat("--nodes=", workers), "--listen=127.0.0.1:0"},
                         std::string()));
  job->processes_.push_back(std::move(coordinator));
  FERRY_ASSIGN_OR_RETURN(const std::string line, job->processes_[0]->ReadLine(deadline, false));
  const size_t at = line.find(kListening);
  if (at == std::string::npos) {
    return absl::InternalError(absl::StrCat("the coordinator said ", line));
  }
  job->coordinator_ = line.substr(at + sizeof(kListening) - 1);
  for (int node = 0; node < workers; ++node) {
    FERRY_ASSIGN_OR_RETURN(
        auto worker, ToolProcess::Start(
                         absl::StrCat("worker ", node),
                         {"worker", absl::StrCat("--coordinator=", job->coordinator_),
                          absl::StrCat("--node-id=", node), absl::StrCat("--num-nodes=", workers)},
                         std::string()));
    job->processes_.push_back(std::move(worker));
  }
  for (size_t i = 1; i < job->processes_.size(); ++i) {
    FERRY_RETURN_IF_ERROR(job->processes_[i]->ReadLine(deadline, false).status());
  }
  return job;
}

}  // namespace ferry::cli
