// SPDX-License-Identifier: Apache-2.0
// Starts helpers, reads their lines, and reports helpers that fail.
#include "doctor/processes.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/tool_process.h"
#include "doctor/gpu_checks.h"
#include "doctor/lines.h"

namespace ferry::cli {
namespace {

constexpr char kDriverTrouble[] =
    "see dmesg for lines with NVRM, Xid or oom-kill; where the driver hangs, reset the GPU "
    "(nvidia-smi -r) or reboot";
constexpr char kNcclTrouble[] =
    "NCCL_DEBUG=INFO says where NCCL stays; a network that does not answer is passed by with "
    "NCCL_SOCKET_IFNAME, a library that is not whole with FERRY_NCCL_LIBRARY; see dmesg too";
// Time to wait for the exit status of a process after its peer failed: it explains more.
constexpr absl::Duration kHalfTimeout = absl::Seconds(2);

// A helper process and its last reported operation.
class Helper final {
 public:
  static absl::StatusOr<Helper> Start(std::string name, std::vector<std::string> arguments,
                                      absl::Duration timeout) {
    arguments.insert(arguments.begin(), "doctor-helper");
    Helper helper;
    helper.timeout_ = timeout;
    FERRY_ASSIGN_OR_RETURN(helper.process_,
                           ToolProcess::Start(std::move(name), std::move(arguments), std::nullopt,
                                              FerryVariables::kPassOn));
    return helper;
  }

  // Returns the next line that is not a phase; nullopt at the end.
  //   Errors: how the process ended, or the error that it reported.
  absl::StatusOr<std::optional<Json>> Next() {
    while (true) {
      const absl::StatusOr<std::string> line =
          process_->ReadLine(SteadyClock().Now() + timeout_, /*verbose=*/false);
      if (!line.ok()) return Explain(line.status());
      std::optional<Json> json = ParseHelperLine(*line);
      if (!json) continue;
      if (NotePhase(*json)) continue;
      if (json->contains("check")) {
        check_ = (*json)["check"].is_string() ? (*json)["check"].get<std::string>() : "";
        continue;
      }
      if (json->contains("end")) return std::optional<Json>();
      if (!json->contains("error")) return json;
      return absl::InternalError((*json)["error"].is_string() ? (*json)["error"].get<std::string>()
                                                              : "an error without a text");
    }
  }

  // Returns OK if it has exited by itself with status 0.
  absl::Status WaitForExit(absl::Duration timeout) {
    const absl::Status exit = process_->WaitForExit(SteadyClock().Now() + timeout);
    if (exit.ok()) return exit;
    ReadPhases();
    return Explain(exit);
  }

  // "the exporting process (pid 7) was last opening gpu:0"
  std::string Doing() {
    ReadPhases();
    return absl::StrCat(process_->name(), " (pid ", process_->pid(), ") was last ",
                        phase_.empty() ? "starting" : phase_);
  }

  // The name of the check in progress.
  const std::string& check() const { return check_; }

 private:
  Helper() = default;

  // Reads the pending lines without blocking.
  void ReadPhases() {
    while (true) {
      const absl::StatusOr<std::string> line =
          process_->ReadLine(SteadyClock().Now(), /*verbose=*/false);
      if (!line.ok()) return;
      if (const std::optional<Json> json = ParseHelperLine(*line)) NotePhase(*json);
    }
  }

  // Returns true if the line is a phase.
  bool NotePhase(const Json& json) {
    if (!json.contains("phase")) return false;
    if (json["phase"].is_string()) phase_ = json["phase"].get<std::string>();
    return true;
  }

  absl::Status Explain(const absl::Status& status) const {
    const std::string doing = phase_.empty() ? "" : absl::StrCat(", last ", phase_);
    if (absl::IsDeadlineExceeded(status)) {
      return absl::DeadlineExceededError(absl::StrCat(process_->name(), " (pid ", process_->pid(),
                                                      ") has said nothing for ",
                                                      ShortDuration(timeout_), doing));
    }
    return absl::Status(status.code(), absl::StrCat(status.message(), doing));
  }

  std::unique_ptr<ToolProcess> process_;
  absl::Duration timeout_;
  std::string phase_;
  std::string check_;
};

// Returns true if the process itself failed, rather than the operation that it tried.
bool IsTrouble(const absl::Status& status) { return !absl::IsInternal(status); }

// Forwards findings to `sink`; other lines go to `other`.
//   todo: advice if the process itself fails.
void Follow(absl::StatusOr<Helper> helper, const std::string& first_check, const std::string& todo,
            const FindingSink& sink, const std::function<void(const Json&)>& other) {
  if (!helper.ok()) {
    sink(doctor::Wrong(first_check, std::string(helper.status().message()),
                       "make room for processes and descriptors (ulimit -u, ulimit -n)"));
    return;
  }
  while (true) {
    absl::StatusOr<std::optional<Json>> line = helper->Next();
    if (!line.ok()) {
      sink(doctor::Wrong(
          helper->check().empty() ? first_check : helper->check(),
          std::string(line.status().message()),
          IsTrouble(line.status()) ? todo : doctor::AdviceForCall(line.status().message())));
      return;
    }
    if (!line->has_value()) return;
    const Json& json = **line;
    if (!json.contains("finding")) {
      other(json);
    } else if (std::optional<doctor::Finding> finding = ParseFinding(json["finding"])) {
      sink(*std::move(finding));
    }
  }
}

// Sets `number` to the member, if there is one.
template <typename Number>
void ReadNumber(const Json& json, const char* member, Number& number) {
  const auto found = json.find(member);
  if (found != json.end() && found->is_number()) number = found->get<Number>();
}

absl::Status OutcomeStatus(const Json& json) {
  const auto reason = json.find("reason");
  if (reason == json.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(reason->is_string() ? reason->get<std::string>() : "");
}

// The importer's outcomes for one GPU, by both export methods.
struct IpcReport {
  std::optional<doctor::IpcOutcome> descriptor;
  std::optional<doctor::IpcOutcome> handle;
};

absl::StatusOr<std::string> SocketOf(Helper& exporter) {
  FERRY_ASSIGN_OR_RETURN(const std::optional<Json> line, exporter.Next());
  if (line && line->contains("socket") && (*line)["socket"].is_string()) {
    return (*line)["socket"].get<std::string>();
  }
  return absl::UnavailableError("the exporting process named no socket");
}

absl::StatusOr<IpcReport> ReadReport(Helper& importer) {
  IpcReport report;
  while (true) {
    FERRY_ASSIGN_OR_RETURN(const std::optional<Json> line, importer.Next());
    if (!line) return report;
    for (const char* way : {"descriptor", "handle"}) {
      if (!line->contains(way) || !(*line)[way].is_object()) continue;
      const Json& json = (*line)[way];
      double taken_s = 0;
      ReadNumber(json, "taken_s", taken_s);
      doctor::IpcOutcome outcome = {OutcomeStatus(json), absl::Seconds(taken_s)};
      (way[0] == 'd' ? report.descriptor : report.handle) = std::move(outcome);
    }
  }
}

absl::StatusOr<IpcReport> Probe(int gpu, absl::Duration timeout) {
  const std::string flag = absl::StrCat("--gpu=", gpu);
  // Longer than our own timeout, so that we learn which operation a process hangs in, rather than
  // from its peer that it does not answer.
  const std::string timeout_flag = absl::StrCat("--timeout=", absl::FormatDuration(2 * timeout));
  FERRY_ASSIGN_OR_RETURN(Helper exporter, Helper::Start("the exporting process",
                                                        {"export", flag, timeout_flag}, timeout));
  FERRY_ASSIGN_OR_RETURN(const std::string socket, SocketOf(exporter));
  FERRY_ASSIGN_OR_RETURN(
      Helper importer,
      Helper::Start("the importing process",
                    {"import", flag, timeout_flag, absl::StrCat("--socket=", socket)}, timeout));
  absl::StatusOr<IpcReport> report = ReadReport(importer);
  if (report.ok() && report->descriptor && report->handle) return report;
  // The importer may only have seen the exporter's socket close.
  const absl::Status exported = exporter.WaitForExit(kHalfTimeout);
  if (!exported.ok() && !absl::IsDeadlineExceeded(exported)) return exported;
  if (absl::IsDeadlineExceeded(report.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat(report.status().message(), "; ", exporter.Doing()));
  }
  if (!report.ok()) return report.status();
  return absl::UnavailableError("the importing process did not say how it went");
}

}  // namespace

GpuPresence CheckGpusInProcess(absl::Duration timeout, const FindingSink& sink) {
  GpuPresence gpus;
  Follow(Helper::Start("the process that looks at the GPUs", {"gpus"}, timeout), "driver",
         kDriverTrouble, sink, [&gpus](const Json& json) {
           ReadNumber(json, "gpus", gpus.count);
           ReadNumber(json, "cuda_version", gpus.cuda_version);
           gpus.is_known = true;
         });
  return gpus;
}

void CheckNcclInProcess(const GpuPresence& gpus, absl::Duration timeout, const FindingSink& sink) {
  Follow(Helper::Start("the process that looks at NCCL",
                       {"nccl", absl::StrCat("--gpu-count=", gpus.count),
                        absl::StrCat("--cuda-version=", gpus.cuda_version)},
                       timeout),
         "nccl", kNcclTrouble, sink, [](const Json& json) {});
}

void CheckIpcInProcesses(int gpu, absl::Duration timeout, const FindingSink& sink) {
  const absl::StatusOr<IpcReport> report = Probe(gpu, timeout);
  if (report.ok()) return sink(doctor::JudgeIpc(gpu, *report->descriptor, *report->handle));
  if (!IsTrouble(report.status())) {
    const doctor::IpcOutcome failed = {report.status()};
    return sink(doctor::JudgeIpc(gpu, failed, failed));
  }
  sink(doctor::Wrong(absl::StrCat("gpu:", gpu, " ipc"), std::string(report.status().message()),
                     kDriverTrouble));
}

}  // namespace ferry::cli
