// SPDX-License-Identifier: Apache-2.0
// Writing no more than is taken.
#include "cli/queued_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace ferry::cli {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;

// A terminal takes less than it was asked about, and a pipe may have other writers: only what does
// not block at all is sure not to. O_NONBLOCK of stdout itself would be everybody's who has it.
UniqueFd OpenStdoutAgain() {
  struct stat about;
  if (fstat(STDOUT_FILENO, &about) != 0) return UniqueFd();
  if (!S_ISFIFO(about.st_mode) && isatty(STDOUT_FILENO) != 1) return UniqueFd();
  return UniqueFd(open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

bool IsReady(int fd) {
  pollfd polled = {fd, POLLOUT, 0};
  // Errors are found by writing.
  return poll(&polled, 1, 0) == 1;
}

// Whether nothing can be written for ever: 0 or an errno.
int OutputLoss(int fd) {
  pollfd polled = {fd, 0, 0};
  if (poll(&polled, 1, 0) != 1) return 0;
  return (polled.revents & POLLNVAL) != 0 ? EBADF : EPIPE;
}

absl::Status CannotWrite(int error) {
  return absl::UnavailableError(absl::StrCat("cannot write the output: ", std::strerror(error)));
}

}  // namespace

QueuedOutput::QueuedOutput(BlockedSignals& signals)
    : signals_(signals), own_fd_(OpenStdoutAgain()) {}

int QueuedOutput::fd() const { return own_fd_.valid() ? own_fd_.get() : STDOUT_FILENO; }

bool QueuedOutput::Add(absl::string_view text) {
  {
    absl::MutexLock lock(&mu_);
    is_full_ = is_full_ || waiting_bytes_ + text.size() > kMaxBytes;
    if (is_full_) return false;
    if (text.empty()) return true;
    waiting_bytes_ += text.size();
    if (pieces_.empty() || pieces_.back().size() >= kPieceBytes) pieces_.emplace_back();
    pieces_.back().append(text.data(), text.size());
    // Else the main thread looks at stdout already.
    if (waiting_bytes_ > text.size()) return true;
  }
  signals_.Wake();
  return true;
}

absl::StatusOr<bool> QueuedOutput::Step(absl::Duration timeout) {
  if (writing_.empty()) {
    absl::MutexLock lock(&mu_);
    if (!pieces_.empty()) {
      writing_ = std::move(pieces_.front());
      pieces_.pop_front();
    }
  }
  if (signals_.WaitFor(timeout, fd(), /*only_loss=*/writing_.empty())) return true;
  if (const int lost = writing_.empty() ? OutputLoss(fd()) : 0; lost != 0) {
    // As the next write would, which may be a long time off: `kv watch | head -1`.
    if (lost == EPIPE) std::raise(SIGPIPE);
    return CannotWrite(lost);
  }
  if (writing_.empty() || !IsReady(fd())) return false;
  // So much of a pipe is free when it says that it is ready.
  const size_t bytes = std::min<size_t>(writing_.size() - written_, PIPE_BUF);
  const ssize_t result = write(fd(), writing_.data() + written_, bytes);
  if (result < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return CannotWrite(errno);
  }
  written_ += static_cast<size_t>(result);
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
  }
  absl::MutexLock lock(&mu_);
  waiting_bytes_ -= static_cast<size_t>(result);
  return false;
}

absl::StatusOr<bool> QueuedOutput::Drain(absl::Duration patience) {
  absl::Time until = SteadyClock().Now() + patience;
  for (size_t before = waiting_bytes(); before > 0;) {
    const absl::Duration left = until - SteadyClock().Now();
    if (left <= absl::ZeroDuration()) return true;
    FERRY_ASSIGN_OR_RETURN(const bool is_interrupted, Step(left));
    if (is_interrupted) return true;
    const size_t after = waiting_bytes();
    if (after < before) until = SteadyClock().Now() + patience;
    before = after;
  }
  return false;
}

size_t QueuedOutput::waiting_bytes() const {
  absl::MutexLock lock(&mu_);
  return waiting_bytes_;
}

}  // namespace ferry::cli
