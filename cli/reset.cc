// SPDX-License-Identifier: Apache-2.0
// ferry reset: ends a job by hand, so that the next one can begin on the same coordinator.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/ranges.h"
#include "base/status_macros.h"
#include "cli/end_job_proof.h"
#include "cli/tool_agent.h"
#include "cli/verb.h"
#include "node/endpoint_record.h"
#include "node/identity.h"
#include "node/transfer_engine.h"

namespace ferry::cli {
namespace {

struct ResetFlags {
  std::string coordinator;
  std::string reason = "by ferry reset";
  bool force = false;
};

// "nodes 0-2 were connected, node 3 had failed".
std::string Describe(const coord::JobStatus& status) {
  std::vector<int> connected;
  std::vector<int> failed;
  for (const coord::TaskStatus& task : status.tasks) {
    if (task.state == coord::TaskState::kConnected) connected.push_back(task.node_id);
    if (task.state == coord::TaskState::kError) failed.push_back(task.node_id);
  }
  const auto part = [](const std::vector<int>& nodes, const char* one, const char* more) {
    if (nodes.empty()) return std::string();
    const bool is_one = nodes.size() == 1;
    return absl::StrCat(is_one ? "node " : "nodes ", FormatRanges(nodes), is_one ? one : more);
  };
  const std::string first = part(connected, " was connected", " were connected");
  const std::string second = part(failed, " had failed", " had failed");
  if (first.empty() && second.empty()) return "no node was connected";
  return absl::StrCat(first, first.empty() || second.empty() ? "" : ", ", second);
}

absl::StatusOr<int> Reset(const ResetFlags& flags) {
  FERRY_ASSIGN_OR_RETURN(const auto agent, ConnectTool(flags.coordinator));
  FERRY_ASSIGN_OR_RETURN(const coord::JobStatus status, agent->Status());
  FERRY_ASSIGN_OR_RETURN(std::string token, FindToken({}, ProcessEnv));
  // A token that the nodes generated is in the store, which every client of the coordinator can
  // read.
  if (token.empty()) token = agent->TryGet(kExchangeTokenKey).value_or("");
  const std::string proof =
      token.empty() ? std::string() : EndJobProof(token, status.coordinator_incarnation);
  const absl::Status ended = agent->EndJob(flags.reason, flags.force, proof);
  if (!ended.ok()) return AsFailure(ended);
  std::printf("ferry reset: job %lld has ended; %s; the next process that joins begins job %lld\n",
              static_cast<long long>(status.epoch), Describe(status).c_str(),
              static_cast<long long>(status.epoch) + 1);
  return kDone;
}

}  // namespace

Verb AddResetVerb(CLI::App& app) {
  auto flags = std::make_shared<ResetFlags>();
  CLI::App& verb = *app.add_subcommand(
      "reset", "End a job by hand, so that the next one can begin on the same coordinator");
  verb.footer(
      "A job that has failed ends by itself when its processes are gone; one that is stopped or\n"
      "hangs keeps it. What waits ends with ABORTED and the reason, the store is emptied, and the\n"
      "job's processes are refused from then on. If the job has a token (FERRY_JOB_TOKEN,\n"
      "FERRY_JOB_TOKEN_FILE), it is needed here, too.");
  AddCoordinatorFlag(verb, flags->coordinator);
  verb.add_option("--reason", flags->reason, "what the job's processes are told")
      ->type_name("TEXT")
      ->capture_default_str();
  verb.add_flag("--force", flags->force, "also end a job that is healthy");
  return [flags]() { return Reset(*flags); };
}

}  // namespace ferry::cli
