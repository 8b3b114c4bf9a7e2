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
#include "base/unique_fd.h"

namespace ferry::check {
namespace {

constexpr size_t kMaxOutput = 100'000;
constexpr int kNotFound = 127;

}  // namespace

absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& arguments,
                                         absl::Time deadline) {
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
  ProgramResult result;
  const auto take = [&] {
    char buffer[4096];
    ssize_t got = 0;
    while ((got = read(from.get(), buffer, sizeof(buffer))) > 0) {
      result.output.append(buffer, static_cast<size_t>(got));
    }
    if (result.output.size() > kMaxOutput) {
      result.output.erase(0, result.output.size() - kMaxOutput);
    }
    return got != 0;
  };
  while (waitpid(child, &result.wait_status, WNOHANG) != child) {
    if (SteadyClock().Now() >= deadline) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      take();
      return absl::DeadlineExceededError(
          absl::StrCat(arguments[0], " does not end; it said: ", result.output));
    }
    pollfd polled = {from.get(), POLLIN, 0};
    poll(&polled, 1, 20);
    if (!take()) absl::SleepFor(absl::Milliseconds(5));
  }
  take();
  if (WIFEXITED(result.wait_status) && WEXITSTATUS(result.wait_status) == kNotFound) {
    return absl::NotFoundError(absl::StrCat("there is no ", arguments[0]));
  }
  return result;
}

}  // namespace ferry::check
