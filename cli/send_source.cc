// SPDX-License-Identifier: Apache-2.0
// Reads input of unknown size, within the deadline.
#include "cli/send_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::cli {
namespace {

// Files up to this size are read at once, to verify the size they report.
constexpr off_t kSmallFile = off_t{1} << 20;
// Input of unknown size is stored in pieces of this length.
constexpr size_t kPiece = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<SendSource>> SendSource::Open(const std::string& path,
                                                             const SendSourceOptions& options) {
  const bool is_stdin = path == "-";
  // O_NONBLOCK: otherwise open blocks on a pipe without a writer.
  const int fd = is_stdin ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  auto source = absl::WrapUnique(
      new SendSource(is_stdin ? "stdin" : Quoted(path), fd, /*is_owned=*/!is_stdin && fd >= 0));
  struct stat about {};
  if (fd < 0 || fstat(fd, &about) != 0) return source->Failure(errno);
  if (S_ISREG(about.st_mode) && about.st_size > kSmallFile) {
    // Bytes already consumed from stdin do not count.
    const off_t at = lseek(fd, 0, SEEK_CUR);
    source->bytes_ = static_cast<size_t>(about.st_size - std::clamp<off_t>(at, 0, about.st_size));
    return source;
  }
  FERRY_RETURN_IF_ERROR(source->ReadToEnd(options));
  return source;
}

SendSource::~SendSource() {
  if (is_owned_) close(fd_);
}

absl::Status SendSource::Failure(int error) const {
  return absl::UnavailableError(absl::StrCat("cannot read ", name_, ": ", std::strerror(error)));
}

absl::Status SendSource::ReadToEnd(const SendSourceOptions& options) {
  const absl::Time deadline = SteadyClock().Now() + options.timeout;
  // One byte beyond the limit shows that there is more.
  const size_t expected = options.expected_bytes.value_or(options.most_bytes);
  const size_t enough = std::min(expected, options.most_bytes) + 1;
  size_t filled = 0;
  while (bytes_ < enough) {
    pollfd ready{fd_, POLLIN, 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(
        absl::Ceil(deadline - SteadyClock().Now(), absl::Milliseconds(1)));
    const int polled = poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left_ms, 0, 1 << 30)));
    if (polled < 0 && errno != EINTR) return Failure(errno);
    if (polled == 0 || left_ms <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(name_, " has not ended within ", absl::FormatDuration(options.timeout),
                       "; it has given ", bytes_, " bytes so far (--timeout)"));
    }
    if (polled < 0) continue;
    // Pipes return little at a time: fill up the current piece first.
    if (content_.empty() || filled == content_.back().size()) {
      content_.emplace_back(std::min(kPiece, enough - bytes_), '\0');
      filled = 0;
    }
    std::string& piece = content_.back();
    const ssize_t count = read(fd_, piece.data() + filled, piece.size() - filled);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return Failure(errno);
    if (count == 0) break;
    filled += static_cast<size_t>(count);
    bytes_ += static_cast<size_t>(count);
  }
  if (bytes_ > options.most_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, " has more than the ", options.most_bytes,
                     " bytes that the arena may have (--arena-budget-bytes)"));
  }
  has_more_ = bytes_ > expected;
  is_read_ = true;
  return absl::OkStatus();
}

absl::Status SendSource::Read(char* to) {
  if (is_read_) {
    for (size_t done = 0; std::string & piece : content_) {
      const size_t count = std::min(piece.size(), bytes_ - done);
      std::copy_n(piece.begin(), count, to + done);
      done += count;
      // Free each piece once copied.
      piece = std::string();
    }
    return absl::OkStatus();
  }
  for (size_t done = 0; done < bytes_;) {
    const ssize_t count = read(fd_, to + done, bytes_ - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failure(errno);
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat(name_, " has become shorter: ", done, " of ", bytes_, " bytes"));
    }
    done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace ferry::cli
