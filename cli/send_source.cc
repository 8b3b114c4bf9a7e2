// SPDX-License-Identifier: Apache-2.0
// Reading without a size, and never for longer than the deadline.
#include "cli/send_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ferry::cli {
namespace {

// A file up to this size is read at once, to check that it has as many bytes as it reports.
constexpr off_t kSmallFile = off_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<SendSource>> SendSource::Open(const std::string& path,
                                                             const SendSourceOptions& options) {
  const bool is_stdin = path == "-";
  // O_NONBLOCK: else a pipe without a writer is waited for here.
  const int fd = is_stdin ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  auto source = absl::WrapUnique(
      new SendSource(is_stdin ? "stdin" : Quoted(path), fd, /*is_owned=*/!is_stdin && fd >= 0));
  struct stat about {};
  if (fd < 0 || fstat(fd, &about) != 0) return source->Failure(errno);
  if (S_ISREG(about.st_mode) && about.st_size > kSmallFile) {
    // Bytes that were read from stdin before count as absent.
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
  std::vector<char> piece(size_t{1} << 16);
  while (true) {
    pollfd ready{fd_, POLLIN, 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(
        absl::Ceil(deadline - SteadyClock().Now(), absl::Milliseconds(1)));
    const int polled = poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left_ms, 0, 1 << 30)));
    if (polled < 0 && errno != EINTR) return Failure(errno);
    if (polled == 0 || left_ms <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(name_, " has not ended within ", absl::FormatDuration(options.timeout),
                       "; it has given ", content_.size(), " bytes so far (--timeout)"));
    }
    if (polled < 0) continue;
    const ssize_t count = read(fd_, piece.data(), piece.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return Failure(errno);
    if (count == 0) break;
    content_.append(piece.data(), static_cast<size_t>(count));
    if (content_.size() > options.most_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(name_, " has more than the ", options.most_bytes,
                       " bytes that the arena may have (--arena-budget-bytes)"));
    }
  }
  bytes_ = content_.size();
  is_read_ = true;
  return absl::OkStatus();
}

absl::Status SendSource::Read(char* to) {
  if (is_read_) {
    std::copy(content_.begin(), content_.end(), to);
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
