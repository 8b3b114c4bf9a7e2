// SPDX-License-Identifier: Apache-2.0
// Starting, reading and ending a program.
#include "benchmarks/gpu/check_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace ferry::check {
namespace {

constexpr size_t kMaxOutput = 100'000;
constexpr int kNotFound = 127;

}  // namespace

absl::StatusOr<int> WatchProgram(const std::vector<std::string>& arguments,
                                 const std::function<void(absl::string_view)>& on_output,
                                 const std::function<absl::Time()>& deadline) {
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pipes[1], STDOUT_FILENO);
    dup2(pipes[1], STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& each : arguments) argv.push_back(const_cast<char*>(each.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    std::_Exit(kNotFound);
  }
  close(pipes[1]);
  const UniqueFd from(pipes[0]);
  fcntl(from.get(), F_SETFL, O_NONBLOCK);
  const auto take = [&] {
    char buffer[4096];
    ssize_t got = 0;
    while ((got = read(from.get(), buffer, sizeof(buffer))) > 0) {
      on_output(absl::string_view(buffer, static_cast<size_t>(got)));
    }
    return got != 0;
  };
  int wait_status = 0;
  while (waitpid(child, &wait_status, WNOHANG) != child) {
    if (SteadyClock().Now() >= deadline()) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      take();
      return absl::DeadlineExceededError(absl::StrCat(arguments[0], " does not end"));
    }
    pollfd polled = {from.get(), POLLIN, 0};
    poll(&polled, 1, 20);
    if (!take()) absl::SleepFor(absl::Milliseconds(5));
  }
  take();
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kNotFound) {
    return absl::NotFoundError(absl::StrCat("there is no ", arguments[0]));
  }
  return wait_status;
}

absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& arguments,
                                         absl::Time deadline) {
  ProgramResult result;
  const absl::StatusOr<int> ended = WatchProgram(
      arguments,
      [&result](absl::string_view output) {
        absl::StrAppend(&result.output, output);
        if (result.output.size() > kMaxOutput) {
          result.output.erase(0, result.output.size() - kMaxOutput);
        }
      },
      [deadline] { return deadline; });
  if (absl::IsDeadlineExceeded(ended.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat(ended.status().message(), "; it said: ", result.output));
  }
  FERRY_RETURN_IF_ERROR(ended.status());
  result.wait_status = *ended;
  return result;
}

}  // namespace ferry::check
