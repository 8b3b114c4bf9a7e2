// SPDX-License-Identifier: Apache-2.0
// Forks parts, reads their reports, and ends them.
#include "benchmarks/gpu/check_run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "benchmarks/gpu/part_report.h"
#include "gpu/cuda/cuda_device.h"

namespace ferry::check {
namespace {

constexpr size_t kMaxMessage = size_t{1} << 17;
// The limit of a part's recorded stderr.
constexpr size_t kMaxLastWords = 4000;
// The timeout of a process that queries free memory.
constexpr absl::Duration kProbeLimit = absl::Seconds(15);
constexpr int kGpusInUse = 2;
// A process that hangs in a driver may never react to a signal: it is left behind.
bool HasEndedWithin(absl::Duration timeout, pid_t child, int* wait_status) {
  const absl::Time give_up = SteadyClock().Now() + timeout;
  while (waitpid(child, wait_status, WNOHANG) != child) {
    if (SteadyClock().Now() >= give_up) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

// Parses one message of the part into `result`.
void Take(const Json& line, Json& result) {
  if (line.contains("check")) result["checks"].push_back(line["check"]);
  if (line.contains("figure")) result["figures"].push_back(line["figure"]);
  if (line.contains("note")) result["notes"].push_back(line["note"]);
  if (line.contains("skip")) result["reason"] = line["skip"];
  if (line.contains("fact")) {
    result["facts"][line["fact"]["key"].get<std::string>()] = line["fact"]["value"];
  }
}

// Reads the available bytes without waiting; false: end of file.
bool Drain(int messages, Json& result) {
  std::string text(kMaxMessage, '\0');
  while (true) {
    const ssize_t got = recv(messages, text.data(), text.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    const Json line = Json::parse(text.substr(0, static_cast<size_t>(got)), nullptr, false);
    if (!line.is_discarded()) Take(line, result);
  }
}

bool DrainWords(int fd, std::string& words, bool is_verbose) {
  char buffer[4096];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    if (is_verbose) std::fwrite(buffer, 1, static_cast<size_t>(got), stderr);
    words.append(buffer, static_cast<size_t>(got));
    if (words.size() > kMaxLastWords) words.erase(0, words.size() - kMaxLastWords);
  }
}

[[noreturn]] void RunInChild(const Part& part, const Options& options, const Machine& machine,
                             absl::Time deadline, int messages, int words) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(words, STDERR_FILENO);
  dup2(words, STDOUT_FILENO);
  Reporter reporter(messages);
  PartContext context{reporter, options, machine, deadline};
  const absl::Status status = part.run(context);
  if (!status.ok()) reporter.Check("the part itself", status);
  std::fflush(nullptr);
  std::_Exit(0);
}

// The state of a part that has ended with `wait_status`.
void Judge(int wait_status, bool is_killed, absl::Duration limit, Json& result) {
  bool has_failed = false;
  bool has_passed = false;
  for (const Json& check : result["checks"]) {
    has_failed |= check["status"] == "failed";
    has_passed |= check["status"] == "passed";
  }
  for (const Json& figure : result["figures"]) {
    has_failed |= figure["wrong_bytes"].get<uint64_t>() != 0;
  }
  if (is_killed) {
    result["status"] = "killed";
    result["reason"] = absl::StrCat(
        "it did not end within ",
        absl::FormatDuration(absl::Trunc(limit + absl::Microseconds(500), absl::Milliseconds(1))),
        ", and was killed");
  } else if (WIFSIGNALED(wait_status) || WEXITSTATUS(wait_status) != 0) {
    result["status"] = "crashed";
    result["reason"] = WIFSIGNALED(wait_status)
                           ? absl::StrCat("it died of signal ", WTERMSIG(wait_status))
                           : absl::StrCat("it ended with status ", WEXITSTATUS(wait_status));
  } else if (has_failed) {
    result["status"] = "failed";
  } else if (!has_passed && result["figures"].empty()) {
    result["status"] = "skipped";
    // Individually skipped checks have their reasons there.
    if (result["reason"] == "" && !result["checks"].empty()) {
      result["reason"] = result["checks"][0]["reason"];
    }
  } else {
    result["status"] = "passed";
  }
}

}  // namespace

Json RunPart(const Part& part, const Options& options, const Machine& machine, absl::Time deadline,
             bool is_verbose) {
  const absl::Time began = SteadyClock().Now();
  Json result = EmptyReport(part);
  int messages[2];
  int words[2];
  FERRY_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, messages) == 0);
  FERRY_CHECK(pipe2(words, O_CLOEXEC) == 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  FERRY_CHECK(child >= 0);
  if (child == 0) {
    close(messages[0]);
    close(words[0]);
    RunInChild(part, options, machine, deadline, messages[1], words[1]);
  }
  close(messages[1]);
  close(words[1]);
  const UniqueFd said(messages[0]);
  const UniqueFd wrote(words[0]);
  fcntl(wrote.get(), F_SETFL, O_NONBLOCK);
  std::string last_words;
  int wait_status = 0;
  bool is_killed = false;
  while (waitpid(child, &wait_status, WNOHANG) != child) {
    if (SteadyClock().Now() >= deadline) {
      is_killed = true;
      kill(-child, SIGKILL);
      kill(child, SIGKILL);
      if (!HasEndedWithin(kKillTimeout, child, &wait_status)) wait_status = SIGKILL;
      break;
    }
    pollfd polled[] = {{said.get(), POLLIN, 0}, {wrote.get(), POLLIN, 0}};
    poll(polled, 2, 20);
    const bool is_open = Drain(said.get(), result);
    if (!DrainWords(wrote.get(), last_words, is_verbose) || !is_open) {
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  // Its children, if it has left any.
  kill(-child, SIGKILL);
  Drain(said.get(), result);
  DrainWords(wrote.get(), last_words, is_verbose);
  Judge(wait_status, is_killed, deadline - began, result);
  result["seconds"] = absl::ToDoubleSeconds(SteadyClock().Now() - began);
  const std::string status = result["status"].get<std::string>();
  if (status != "passed" && status != "skipped") {
    result["last_words"] = std::string(absl::StripAsciiWhitespace(last_words));
  }
  return result;
}

std::vector<size_t> FreeBytesOfGpus(absl::Time deadline) {
  const absl::Duration limit = std::min(kProbeLimit, deadline - SteadyClock().Now());
  if (limit < absl::Seconds(1)) return {};
  int pipes[2];
  FERRY_CHECK(pipe2(pipes, O_CLOEXEC) == 0);
  const pid_t child = fork();
  FERRY_CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    // One that hangs is left behind, and must not hold the caller's pipes open.
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    absl::StatusOr<std::shared_ptr<const cuda::CudaApi>> api = cuda::CudaApi::Load();
    if (!api.ok()) std::_Exit(0);
    int count = 0;
    (*api)->table().device_get_count(&count);
    for (int ordinal = 0; ordinal < std::min(count, kGpusInUse); ++ordinal) {
      const auto device = cuda::CudaDevice::Open(*api, ordinal);
      if (!device.ok()) std::_Exit(0);
      const cuda::ScopedCurrent current(**device);
      size_t free_bytes = 0;
      size_t total_bytes = 0;
      if ((*api)->table().memory_get_info(&free_bytes, &total_bytes) != cuda::kSuccess) break;
      if (write(pipes[1], &free_bytes, sizeof(free_bytes)) != sizeof(free_bytes)) break;
    }
    std::_Exit(0);
  }
  close(pipes[1]);
  const UniqueFd from(pipes[0]);
  std::vector<size_t> all;
  size_t free_bytes = 0;
  const absl::Time give_up = SteadyClock().Now() + limit;
  while (true) {
    pollfd polled = {from.get(), POLLIN, 0};
    const auto left = static_cast<int>(absl::ToInt64Milliseconds(give_up - SteadyClock().Now()));
    if (left <= 0 || poll(&polled, 1, left) <= 0) break;
    if (read(from.get(), &free_bytes, sizeof(free_bytes)) != sizeof(free_bytes)) break;
    all.push_back(free_bytes);
  }
  kill(child, SIGKILL);
  int ignored = 0;
  HasEndedWithin(kKillTimeout, child, &ignored);
  return all;
}

}  // namespace ferry::check
