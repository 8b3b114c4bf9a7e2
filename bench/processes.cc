// SPDX-License-Identifier: Apache-2.0
// Starts the processes, reads their lines, and finds the first that failed.
#include "bench/processes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "cli/transfer_flags.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kServerTimeout = absl::Seconds(30);
// How long to read one process before polling the next.
constexpr absl::Duration kListenTurn = absl::Milliseconds(20);
// A killed process is detected within this time after the first one that noticed its loss.
constexpr absl::Duration kCauseTimeout = absl::Milliseconds(200);
// A process that fails because of another says so; the other's error may come later.
constexpr absl::Duration kRootTimeout = absl::Seconds(5);
constexpr absl::string_view kFollowUps[] = {"[_Derived_]", " has died",
                                            " has failed: ", "process is leaving"};
constexpr char kServerListening[] = "listening on ";

bool WasKilled(const absl::Status& exit) {
  return absl::StrContains(exit.message(), "killed by signal");
}

bool IsFollowUp(const absl::Status& exit) {
  return std::any_of(std::begin(kFollowUps), std::end(kFollowUps), [&exit](absl::string_view each) {
    return absl::StrContains(exit.message(), each);
  });
}

double SecondsOf(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchPages>> BenchPages::Create() {
  UniqueFd fd(memfd_create("ferry-bench", MFD_CLOEXEC));
  // A seccomp profile may deny memfd_create; an unnamed file is an alternative.
  for (const char* const folder : {"/dev/shm", "/tmp"}) {
    if (!fd.valid()) fd = UniqueFd(open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  }
  // Allocates the pages: otherwise touching them could raise SIGBUS.
  const int error = fd.get() < 0 ? errno : posix_fallocate(fd.get(), 0, off_t{kBenchPagesBytes});
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot make ", kBenchPagesBytes,
                                               " bytes of memory for the bench's processes to "
                                               "share (memfd_create): ",
                                               std::strerror(error)));
  }
  return std::unique_ptr<BenchPages>(new BenchPages(std::move(fd)));
}

// Valid because the processes have the same user, and this one outlives them.
std::string BenchPages::path() const { return absl::StrCat("/proc/", getpid(), "/fd/", fd_.get()); }

double OwnCpuSeconds() { return SecondsOf(CLOCK_PROCESS_CPUTIME_ID); }

double BenchServer::CpuSeconds() const {
  clockid_t clock = 0;
  if (process == nullptr || clock_getcpuclockid(process->pid(), &clock) != 0) return 0;
  return SecondsOf(clock);
}

absl::StatusOr<BenchServer> StartBenchServer(std::string name, std::vector<std::string> arguments,
                                             BenchStage& stage) {
  BenchServer server;
  FERRY_ASSIGN_OR_RETURN(server.process,
                         ToolProcess::Start(std::move(name), std::move(arguments), std::string()));
  server.watched = stage.Watch(server.process->name(), server.process->pid());
  FERRY_ASSIGN_OR_RETURN(const std::string line,
                         server.process->ReadLine(SteadyClock().Now() + kServerTimeout, false));
  const size_t at = line.find(kServerListening);
  if (at == std::string::npos) {
    return absl::InternalError(absl::StrCat(server.process->name(), " said ", line));
  }
  server.address = line.substr(at + sizeof(kServerListening) - 1);
  return server;
}

absl::StatusOr<std::unique_ptr<BenchWorkers>> BenchWorkers::Start(
    int count, const std::string& coordinator, const std::string& plan,
    const TransferEngineOptions& transfer, BenchStage& stage, BenchGpus gpus) {
  std::unique_ptr<BenchWorkers> workers(new BenchWorkers());
  for (int node = 0; node < count; ++node) {
    std::vector<std::string> arguments = {
        "bench-worker", absl::StrCat("--coordinator=", coordinator),
        absl::StrCat("--node-id=", node), absl::StrCat("--num-nodes=", count),
        absl::StrCat("--plan=", plan)};
    if (gpus == BenchGpus::kShared) arguments.push_back("--share-gpus");
    for (std::string& each : TransferArguments(transfer)) arguments.push_back(std::move(each));
    // With GPUs, pass on FERRY_ variables, which locate the driver's libraries; identities are
    // given by flags.
    const bool are_hidden = gpus == BenchGpus::kHidden;
    FERRY_ASSIGN_OR_RETURN(
        auto worker,
        ToolProcess::Start(absl::StrCat("process ", node), std::move(arguments),
                           are_hidden ? std::optional(std::string()) : std::nullopt,
                           are_hidden ? FerryVariables::kLeaveOut : FerryVariables::kPassOn));
    workers->watched_.push_back(stage.Watch(worker->name(), worker->pid()));
    workers->processes_.push_back(std::move(worker));
  }
  return workers;
}

absl::Status BenchWorkers::FirstCause(size_t noticed, absl::Status status) {
  if (WasKilled(status)) return status;
  const bool follows = IsFollowUp(status);
  const absl::Time deadline = SteadyClock().Now() + (follows ? kRootTimeout : kCauseTimeout);
  absl::Status root;
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (i == noticed) continue;
    const absl::Status other = processes_[i]->WaitForExit(deadline);
    if (WasKilled(other)) return other;
    const bool has_exited = !other.ok() && !absl::IsDeadlineExceeded(other);
    if (root.ok() && follows && has_exited && !IsFollowUp(other)) root = other;
  }
  return root.ok() ? status : root;
}

absl::StatusOr<std::vector<BenchWorkers::Json>> BenchWorkers::Expect(const std::string& event) {
  const absl::Time deadline = SteadyClock().Now() + kBenchLineTimeout;
  std::vector<std::optional<std::string>> lines(processes_.size());
  // Polls all of them in turn: one may wait for another that has died.
  for (bool is_complete = false; !is_complete;) {
    is_complete = true;
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (lines[i]) continue;
      absl::StatusOr<std::string> line =
          processes_[i]->ReadLine(std::min(deadline, SteadyClock().Now() + kListenTurn), false);
      if (line.ok()) {
        lines[i] = *std::move(line);
        continue;
      }
      const bool is_late = SteadyClock().Now() >= deadline;
      if (!absl::IsDeadlineExceeded(line.status())) return FirstCause(i, line.status());
      if (is_late) {
        return absl::DeadlineExceededError(absl::StrCat(processes_[i]->name(),
                                                        " has said nothing of \"", event, "\" for ",
                                                        absl::FormatDuration(kBenchLineTimeout)));
      }
      is_complete = false;
    }
  }
  std::vector<Json> all;
  for (size_t i = 0; i < processes_.size(); ++i) {
    Json json = Json::parse(*lines[i], nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("event", "") != event) {
      return absl::InternalError(
          absl::StrCat(processes_[i]->name(), " said ", *lines[i], " instead of \"", event, "\""));
    }
    all.push_back(std::move(json));
  }
  return all;
}

absl::Status BenchWorkers::WaitForExit() {
  const absl::Time deadline = SteadyClock().Now() + kBenchLineTimeout;
  for (size_t i = 0; i < processes_.size(); ++i) {
    const absl::Status status = processes_[i]->WaitForExit(deadline);
    if (!status.ok()) return FirstCause(i, status);
  }
  return absl::OkStatus();
}

}  // namespace ferry::cli
