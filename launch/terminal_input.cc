// SPDX-License-Identifier: Apache-2.0
// TerminalInput: non-blocking reads of a terminal and writes to a pipe.
#include "launch/terminal_input.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

// A terminal returns at most a line of this length per read.
constexpr size_t kTerminalBytes = 4096;
constexpr absl::Duration kForegroundLook = absl::Milliseconds(200);

}  // namespace

TerminalInput::TerminalInput(int terminal, UniqueFd to)
    : terminal_(open(absl::StrCat("/proc/self/fd/", terminal).c_str(),
                     O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)),
      to_(std::move(to)) {
  fcntl(to_.get(), F_SETFL, fcntl(to_.get(), F_GETFL) | O_NONBLOCK);
  // A terminal that cannot be opened has no input.
  is_at_end_ = !terminal_.valid();
  if (is_at_end_) to_.Reset();
}

bool TerminalInput::IsForeground() const {
  const pid_t group = tcgetpgrp(terminal_.get());
  // A terminal that is not this session's controlling terminal has no foreground group.
  return group < 0 || group == getpgrp();
}

void TerminalInput::AddPolled(std::vector<pollfd>& polled) const {
  if (!to_.valid()) return;
  if (!waiting_.empty()) {
    polled.push_back({to_.get(), POLLOUT, 0});
  } else if (!is_at_end_ && IsForeground()) {
    polled.push_back({terminal_.get(), POLLIN, 0});
  }
}

absl::Duration TerminalInput::NextPoll() const {
  const bool waits_for_foreground = to_.valid() && waiting_.empty() && !IsForeground();
  return waits_for_foreground ? kForegroundLook : absl::InfiniteDuration();
}

bool TerminalInput::Read() {
  if (is_at_end_ || !IsForeground()) return false;
  char buffer[kTerminalBytes];
  const ssize_t count = read(terminal_.get(), buffer, sizeof(buffer));
  if (count > 0) {
    waiting_.assign(buffer, static_cast<size_t>(count));
    return true;
  }
  // EIO, among others: the terminal has hung up.
  if (count == 0 || (errno != EAGAIN && errno != EINTR)) is_at_end_ = true;
  return false;
}

void TerminalInput::Move() {
  while (to_.valid()) {
    if (waiting_.empty() && !Read()) {
      if (is_at_end_) to_.Reset();
      return;
    }
    const ssize_t count = write(to_.get(), waiting_.data(), waiting_.size());
    if (count >= 0) {
      waiting_.erase(0, static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      // The process has closed its standard input.
      to_.Reset();
    }
  }
}

}  // namespace ferry
