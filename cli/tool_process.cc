// SPDX-License-Identifier: Apache-2.0
// Starts, reads and ends other processes of this program.
#include "cli/tool_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry::cli {
namespace {

// Limit on the retained stderr of a process.
constexpr size_t kMaxLastWords = 2000;
// Interval for polling a process that should end.
constexpr absl::Duration kExitPoll = absl::Milliseconds(5);

// How long to wait after SIGKILL: a process blocked in a driver call does not end.
constexpr absl::Duration kKillTimeout = absl::Seconds(5);

std::vector<std::string> Environment(const std::optional<std::string>& cuda_visible_devices,
                                     FerryVariables ferry_variables) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const bool is_replaced =
        cuda_visible_devices && absl::StartsWith(text, "CUDA_VISIBLE_DEVICES=");
    const bool is_left_out =
        ferry_variables == FerryVariables::kLeaveOut && absl::StartsWith(text, "FERRY_");
    if (!is_replaced && !is_left_out) environment.emplace_back(text);
  }
  if (cuda_visible_devices) {
    environment.push_back(absl::StrCat("CUDA_VISIBLE_DEVICES=", *cuda_visible_devices));
  }
  return environment;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ToolProcess>> ToolProcess::Start(
    std::string name, std::vector<std::string> arguments,
    std::optional<std::string> cuda_visible_devices, FerryVariables ferry_variables) {
  arguments.insert(arguments.begin(), "ferry");
  FERRY_ASSIGN_OR_RETURN(
      ChildProcess child,
      SpawnChild("/proc/self/exe", arguments, Environment(cuda_visible_devices, ferry_variables)));
  return std::unique_ptr<ToolProcess>(new ToolProcess(std::move(name), std::move(child)));
}

ToolProcess::~ToolProcess() {
  if (is_reaped_) return;
  kill(-child_.pid, SIGKILL);
  const absl::Time deadline = SteadyClock().Now() + kKillTimeout;
  while (true) {
    const pid_t reaped = waitpid(child_.pid, nullptr, WNOHANG);
    if (reaped == child_.pid || (reaped < 0 && errno != EINTR)) return;
    if (SteadyClock().Now() >= deadline) break;
    absl::SleepFor(kExitPoll);
  }
  std::fprintf(stderr, "ferry: %s (pid %d) does not end, though it was killed\n", name_.c_str(),
               static_cast<int>(child_.pid));
}

void ToolProcess::ReadErrors(bool verbose) {
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(child_.stderr_fd.get(), buffer, sizeof(buffer))) > 0) {
    const absl::string_view text(buffer, count);
    absl::StrAppend(&last_error_lines_, text);
    if (last_error_lines_.size() > kMaxLastWords) {
      last_error_lines_.erase(0, last_error_lines_.size() - kMaxLastWords);
    }
    if (verbose) std::fprintf(stderr, "[%s] %.*s", name_.c_str(), static_cast<int>(count), buffer);
  }
}

bool ToolProcess::ReadAvailable(bool verbose) {
  ReadErrors(verbose);
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(child_.stdout_fd.get(), buffer, sizeof(buffer))) > 0) {
    for (const char c : absl::string_view(buffer, count)) {
      if (c == '\n') {
        lines_.push_back(std::exchange(partial_, ""));
      } else {
        partial_ += c;
      }
    }
  }
  return count == 0;
}

absl::StatusOr<std::string> ToolProcess::ReadLine(absl::Time deadline, bool verbose) {
  while (true) {
    const bool is_over = ReadAvailable(verbose);
    if (!lines_.empty()) {
      std::string line = std::move(lines_.front());
      lines_.pop_front();
      if (verbose) std::fprintf(stderr, "[%s] %s\n", name_.c_str(), line.c_str());
      return line;
    }
    if (is_over) {
      FERRY_RETURN_IF_ERROR(WaitForExit(deadline));
      return absl::AbortedError(absl::StrCat(name_, " ended too early"));
    }
    const absl::Duration left = deadline - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(name_, " has nothing to say"));
    }
    pollfd polled[] = {{child_.stdout_fd.get(), POLLIN, 0}, {child_.stderr_fd.get(), POLLIN, 0}};
    poll(polled, 2,
         static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Hours(1)))) + 1);
  }
}

void ToolProcess::Signal(int signal) {
  if (!is_reaped_) kill(child_.pid, signal);
}

absl::Status ToolProcess::Ended(int wait_status) const {
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return absl::OkStatus();
  std::string text = WIFSIGNALED(wait_status)
                         ? absl::StrCat(name_, " was killed by signal ", WTERMSIG(wait_status))
                         : absl::StrCat(name_, " exited with status ", WEXITSTATUS(wait_status));
  const absl::string_view words = absl::StripAsciiWhitespace(last_error_lines_);
  if (!words.empty()) absl::StrAppend(&text, ": ", words);
  return absl::AbortedError(text);
}

absl::Status ToolProcess::WaitForExit(absl::Time deadline) {
  if (is_reaped_) return absl::OkStatus();
  while (true) {
    int wait_status = 0;
    if (waitpid(child_.pid, &wait_status, WNOHANG) == child_.pid) {
      is_reaped_ = true;
      ReadErrors(/*verbose=*/false);
      return Ended(wait_status);
    }
    if (SteadyClock().Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(name_, " does not end"));
    }
    absl::SleepFor(kExitPoll);
  }
}

}  // namespace ferry::cli
