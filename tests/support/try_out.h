// SPDX-License-Identifier: Apache-2.0
// TryOut: reports the result of a part of a test whose correct result is not known yet, such as
// unobserved behaviour of a driver.
#ifndef FERRY_TESTS_SUPPORT_TRY_OUT_H_
#define FERRY_TESTS_SUPPORT_TRY_OUT_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/status_macros.h"

namespace ferry {

// Runs `body` in a process of its own, whose failures do not fail this test. Returns whether all of
// it held, or the first failure. REQUIRES: this process has one thread.
inline std::string TryOut(const std::function<void()>& body,
                          absl::Duration limit = absl::Seconds(12)) {
  constexpr size_t kKept = 400;
  int pipes[2];
  FERRY_CHECK(pipe2(pipes, O_CLOEXEC | O_NONBLOCK) == 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  FERRY_CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pipes[1], STDOUT_FILENO);
    dup2(pipes[1], STDERR_FILENO);
    body();
    std::fflush(nullptr);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  close(pipes[1]);
  std::string said;
  const auto take = [&] {
    char buffer[4096];
    for (ssize_t got; (got = read(pipes[0], buffer, sizeof(buffer))) > 0;) {
      said.append(buffer, static_cast<size_t>(got));
    }
  };
  const absl::Time give_up = absl::Now() + limit;
  int status = 0;
  bool is_late = false;
  while (waitpid(child, &status, WNOHANG) != child) {
    is_late = absl::Now() > give_up;
    if (is_late) kill(child, SIGKILL);
    pollfd polled = {pipes[0], POLLIN, 0};
    poll(&polled, 1, 10);
    take();
  }
  take();
  close(pipes[0]);
  if (status == 0) return "it held";
  const size_t failure = said.find(": Failure\n");
  const size_t line = failure == std::string::npos ? std::string::npos : said.rfind('\n', failure);
  const std::string what = said.substr(line == std::string::npos ? 0 : line + 1, kKept);
  return absl::StrCat(is_late ? "it did not end within " + absl::FormatDuration(limit)
                              : absl::StrCat("it did not hold, with wait status ", status),
                      what.empty() ? "" : ": ", what);
}

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_TRY_OUT_H_
