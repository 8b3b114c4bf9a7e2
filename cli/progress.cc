// SPDX-License-Identifier: Apache-2.0
// The thread that prints progress.
#include "cli/progress.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/text.h"

namespace ferry::cli {
namespace {

constexpr absl::Duration kFirst = absl::Seconds(1);
constexpr absl::Duration kOnTerminal = absl::Seconds(1);
constexpr absl::Duration kInLog = absl::Seconds(5);

}  // namespace

Progress::Progress(std::function<std::string()> text)
    : text_(std::move(text)),
      start_(SteadyClock().Now()),
      on_terminal_(isatty(STDERR_FILENO) == 1),
      thread_("ferry-progress", [this] { Run(); }) {}

Progress::Progress(std::string text) : Progress([text = std::move(text)] { return text; }) {}

Progress::~Progress() {
  {
    absl::MutexLock lock(&mu_);
    is_over_ = true;
  }
  thread_.Join();
}

void Progress::Run() {
  absl::Duration pause = kFirst;
  bool has_shown = false;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&is_over_), pause)) break;
    }
    pause = on_terminal_ ? kOnTerminal : kInLog;
    const std::string text = text_();
    if (text.empty()) continue;
    const std::string line =
        absl::StrCat("ferry: ", text, " (", ShortDuration(SteadyClock().Now() - start_), ")");
    // A blocked reader of stderr must not block this.
    pollfd output = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&output, 1, 0) != 1 || (output.revents & POLLOUT) == 0) continue;
    std::fprintf(stderr, on_terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
    has_shown = true;
  }
  if (has_shown && on_terminal_) std::fprintf(stderr, "\r\033[K");
}

}  // namespace ferry::cli
