// SPDX-License-Identifier: Apache-2.0
// ferry doctor: checks this machine for GPU jobs, with one line per check.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tool_agent.h"
#include "cli/verb.h"
#include "coord/wire/callback_threads.h"
#include "doctor/host_checks.h"
#include "doctor/lines.h"
#include "doctor/network_checks.h"
#include "doctor/processes.h"
#include "launch/printable.h"

namespace ferry::cli {
namespace {

using doctor::Finding;
using doctor::FindingStatus;

struct DoctorFlags {
  std::string coordinator;
  bool json = false;
  bool require_gpu = false;
  absl::Duration timeout = absl::Seconds(60);
};

// Prints findings as they arrive, so that the user sees progress.
class Report final {
 public:
  explicit Report(bool json) : json_(json) {}

  void Add(Finding finding) {
    if (!json_) {
      const std::string todo =
          finding.todo.empty() ? "" : absl::StrCat(" -> ", Printable(finding.todo));
      std::printf("%-7s  %-13s  %s%s\n",
                  std::string(doctor::FindingStatusName(finding.status)).c_str(),
                  Printable(finding.name).c_str(), Printable(finding.seen).c_str(), todo.c_str());
      std::fflush(stdout);
    }
    findings_.push_back(std::move(finding));
  }

  // Prints the counts, or all findings as JSON. Errors: names the failed checks.
  absl::Status End() const {
    const doctor::FindingCounts counts = doctor::CountFindings(findings_);
    if (json_) {
      Json all = Json::array();
      for (const Finding& finding : findings_) all.push_back(FindingJson(finding));
      const Json report = {{"findings", all},
                           {"ok", counts.ok},
                           {"warnings", counts.warnings},
                           {"wrong", counts.wrong},
                           {"skipped", counts.skipped}};
      std::printf("%s\n", report.dump(2).c_str());
    } else {
      std::printf("\n%d ok, %s, %d wrong, %d skipped\n", counts.ok,
                  Count(counts.warnings, "warning").c_str(), counts.wrong, counts.skipped);
    }
    if (counts.wrong == 0) return absl::OkStatus();
    std::vector<std::string> names;
    for (const Finding& finding : findings_) {
      if (finding.status == FindingStatus::kWrong) names.push_back(finding.name);
    }
    return absl::FailedPreconditionError(absl::StrCat(
        Count(counts.wrong, "check"), " found something wrong: ", absl::StrJoin(names, ", ")));
  }

 private:
  const bool json_;
  std::vector<Finding> findings_;
};

// Tries to allocate the resources without which gRPC aborts a process, since limits do not show how
// much of them other processes use.
Finding CheckGrpc() {
  const absl::Status room = coord::CheckServerRoom();
  if (room.ok()) return doctor::Ok("grpc", "its threads, epoll and descriptors are available");
  return doctor::Wrong(
      "grpc", std::string(room.message()),
      "raise the limit that it names: coordinators and other gRPC servers end with "
      "this error");
}

Finding CheckCoordinator(const std::string& address) {
  const absl::Time start = SteadyClock().Now();
  const auto agent = ConnectTool(address);
  if (!agent.ok()) {
    return doctor::Wrong("coordinator", std::string(agent.status().message()),
                         "start it (ferry coordinator), or open its port to this machine");
  }
  const auto status = (*agent)->Status();
  if (!status.ok()) {
    return doctor::Wrong("coordinator", absl::StrCat(address, ": ", status.status().message()),
                         "see whether it is a Ferry coordinator of this version");
  }
  return doctor::Ok(
      "coordinator",
      absl::StrCat(address, " answers after ", ShortDuration(SteadyClock().Now() - start),
                   ", a job of ", Count(static_cast<long long>(status->tasks.size()), "node")));
}

// Runs the checks that need the driver, in separate processes.
void CheckGpuParts(const DoctorFlags& flags, Report& report) {
  const FindingSink sink = [&report, &flags](Finding finding) {
    if (flags.require_gpu && finding.name == "driver" &&
        finding.status == FindingStatus::kSkipped) {
      finding = doctor::Wrong("driver", std::move(finding.seen),
                              "run this where a GPU is, or without --require-gpu");
    }
    report.Add(std::move(finding));
  };
  GpuPresence gpus;
  {
    const Progress progress("looking at the GPUs");
    gpus = CheckGpusInProcess(flags.timeout, sink);
  }
  for (int gpu = 0; gpu < gpus.count; ++gpu) {
    const Progress progress(absl::StrCat("trying memory of gpu:", gpu, " between two processes"));
    CheckIpcInProcesses(gpu, flags.timeout, sink);
  }
  if (gpus.count == 0) {
    const char* const why =
        gpus.is_known ? "no GPU that can be used" : "it is not known which GPUs there are";
    sink(doctor::Skipped("peer access", why));
    sink(doctor::Skipped("ipc", why));
  }
  const Progress progress("looking at NCCL");
  CheckNcclInProcess(gpus, flags.timeout, sink);
}

absl::StatusOr<int> Diagnose(const DoctorFlags& flags) {
  if (!flags.coordinator.empty()) {
    FERRY_RETURN_IF_ERROR(CheckAddress("--coordinator", flags.coordinator));
  }
  Report report(flags.json);
  const doctor::LocalHostReader host;
  for (Finding& finding : doctor::CheckHost(host)) report.Add(std::move(finding));
  report.Add(CheckGrpc());
  for (Finding& finding : doctor::CheckNetwork(host)) report.Add(std::move(finding));
  if (!flags.coordinator.empty()) report.Add(CheckCoordinator(flags.coordinator));
  CheckGpuParts(flags, report);
  const absl::Status sound = report.End();
  FERRY_RETURN_IF_ERROR(FlushOutput());
  if (!sound.ok()) return sound;
  return kDone;
}

}  // namespace

Verb AddDoctorVerb(CLI::App& app) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App& verb =
      *app.add_subcommand("doctor", "Check this machine for GPU jobs, and suggest fixes");
  verb.footer(
      "A line for each check: ok; warning: it works, but slower or less than it could; wrong: a "
      "job\n"
      "that needs it fails; skipped: nothing to check. Run it as a rank would run: in its "
      "container,\n"
      "with its environment. Exit status 0 if nothing is wrong, else 1.");
  AddCoordinatorFlag(verb, flags->coordinator);
  verb.add_flag("--json", flags->json, "for programs");
  verb.add_flag("--require-gpu", flags->require_gpu, "a machine without a GPU is wrong");
  AddDuration(verb, "--timeout", flags->timeout,
              "limit on each check that waits for a driver or another process", absl::Seconds(1));
  return [flags]() { return Diagnose(*flags); };
}

}  // namespace ferry::cli
