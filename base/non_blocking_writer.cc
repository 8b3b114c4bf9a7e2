// SPDX-License-Identifier: Apache-2.0
// Queues pieces and writes only as much of them as the stream accepts.
#include "base/non_blocking_writer.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

// Write keeps at most this much for the next Flush.
constexpr size_t kFlushBytes = size_t{64} << 10;
constexpr size_t kPieceBytes = size_t{64} << 10;

// A terminal may accept less than poll() promised, and a pipe may have other writers: only a
// non-blocking descriptor is certain not to block. O_NONBLOCK on the stream itself would affect
// every process that shares it, so the file is opened once more.
UniqueFd OpenAgain(int fd) {
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(),
                       O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

bool IsReady(int fd) {
  pollfd polled = {fd, POLLOUT, 0};
  // Errors are found by writing.
  return poll(&polled, 1, 0) == 1;
}

bool IsSameFile(std::FILE* a, std::FILE* b) {
  struct stat first;
  struct stat second;
  return fileno(a) >= 0 && fileno(b) >= 0 && fstat(fileno(a), &first) == 0 &&
         fstat(fileno(b), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

NonBlockingWriter::NonBlockingWriter(std::FILE* file, NonBlockingWriterOptions options)
    : options_(std::move(options)), file_(file), stream_fd_(fileno(file)) {
  std::fflush(file);
  struct stat about;
  if (stream_fd_ < 0 || fstat(stream_fd_, &about) != 0) return;
  is_socket_ = S_ISSOCK(about.st_mode);
  is_file_ = S_ISREG(about.st_mode);
  if (S_ISFIFO(about.st_mode) || isatty(stream_fd_) == 1) own_fd_ = OpenAgain(stream_fd_);
}

bool NonBlockingWriter::Append(absl::string_view bytes) {
  {
    absl::MutexLock lock(&mu_);
    is_full_ = is_full_ || bytes.size() > options_.max_waiting_bytes - waiting_bytes_;
    if (is_full_) return false;
    if (bytes.empty()) return true;
    const bool did_wait = waiting_bytes_ > 0;
    waiting_bytes_ += bytes.size();
    if (pieces_.empty() || pieces_.back().size() >= kPieceBytes) {
      pieces_.push_back(std::exchange(spare_, std::string()));
    }
    pieces_.back().append(bytes.data(), bytes.size());
    if (did_wait) return true;
  }
  if (options_.on_waiting) options_.on_waiting();
  return true;
}

int NonBlockingWriter::Write(absl::string_view bytes) {
  if (!Append(bytes)) return ENOBUFS;
  return waiting() >= kFlushBytes ? Flush() : 0;
}

ssize_t NonBlockingWriter::WriteSome(size_t max_bytes) {
  const char* const from = writing_.data() + written_;
  const size_t bytes = std::min(writing_.size() - written_, max_bytes);
  if (stream_fd_ < 0) {
    const bool is_written = std::fwrite(from, 1, bytes, file_) == bytes && std::fflush(file_) == 0;
    return is_written ? static_cast<ssize_t>(bytes) : -1;
  }
  if (is_socket_) return send(stream_fd_, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (own_fd_.valid() || is_file_) return write(fd(), from, bytes);
  if (!IsReady(stream_fd_)) {
    errno = EAGAIN;
    return -1;
  }
  // A pipe that polls as writable has room for this many bytes.
  return write(stream_fd_, from, std::min<size_t>(bytes, PIPE_BUF));
}

bool NonBlockingWriter::TakePiece() {
  if (!writing_.empty()) return true;
  absl::MutexLock lock(&mu_);
  if (pieces_.empty()) return false;
  writing_ = std::move(pieces_.front());
  pieces_.pop_front();
  return true;
}

int NonBlockingWriter::Flush(size_t max_bytes) {
  for (size_t total = 0; total < max_bytes && TakePiece();) {
    const ssize_t result = WriteSome(max_bytes - total);
    if (result < 0) {
      // The kernel signals a background job that may not write to its terminal (stty tostop).
      if (errno == EAGAIN || errno == EINTR) break;
      const int error = errno;
      DropAll();
      return error;
    }
    const auto bytes = static_cast<size_t>(result);
    total += bytes;
    written_ += bytes;
    absl::MutexLock lock(&mu_);
    waiting_bytes_ -= bytes;
    if (written_ < writing_.size()) continue;
    written_ = 0;
    writing_.clear();
    // A buffer that has grown much larger than a piece is not reused.
    if (writing_.capacity() <= 2 * kPieceBytes) spare_ = std::exchange(writing_, std::string());
  }
  return 0;
}

void NonBlockingWriter::DropAll() {
  writing_.clear();
  written_ = 0;
  absl::MutexLock lock(&mu_);
  pieces_.clear();
  waiting_bytes_ = 0;
}

size_t NonBlockingWriter::waiting() const {
  absl::MutexLock lock(&mu_);
  return waiting_bytes_;
}

int NonBlockingWriter::FindLoss() const {
  pollfd polled = {fd(), 0, 0};
  if (poll(&polled, 1, 0) != 1) return 0;
  return (polled.revents & POLLNVAL) != 0 ? EBADF : EPIPE;
}

NonBlockingWriters::NonBlockingWriters(std::FILE* out, std::FILE* err) : out_(out) {
  if (!IsSameFile(out, err)) own_err_ = std::make_unique<NonBlockingWriter>(err);
}

int NonBlockingWriters::Flush() {
  const int error = out_.Flush();
  const int err_error = own_err_ != nullptr ? own_err_->Flush() : 0;
  return error != 0 ? error : err_error;
}

void NonBlockingWriters::AddPolled(std::vector<pollfd>& polled) const {
  if (out_.waiting() > 0) polled.push_back({out_.fd(), POLLOUT, 0});
  if (own_err_ != nullptr && own_err_->waiting() > 0) {
    polled.push_back({own_err_->fd(), POLLOUT, 0});
  }
}

}  // namespace ferry
