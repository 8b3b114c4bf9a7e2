// SPDX-License-Identifier: Apache-2.0
// Writing what is taken, past stdio.
#include "runtime/patient_output.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

// So much is not kept for the next Flush.
constexpr size_t kFlushBytes = size_t{64} << 10;
// What has been written is cut off when it is as much as this.
constexpr size_t kCutBytes = size_t{64} << 10;

// O_NONBLOCK of the stream itself would be everybody's who has it: it is opened once more.
UniqueFd OpenAgain(int fd) {
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(),
                       O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

bool IsOnePlace(std::FILE* a, std::FILE* b) {
  struct stat first;
  struct stat second;
  return fileno(a) >= 0 && fileno(b) >= 0 && fstat(fileno(a), &first) == 0 &&
         fstat(fileno(b), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

PatientOutput::PatientOutput(std::FILE* file) : file_(file) {
  std::fflush(file);
  const int fd = fileno(file);
  struct stat about;
  if (fd < 0 || fstat(fd, &about) != 0) return;
  if (S_ISSOCK(about.st_mode)) {
    socket_ = fd;
  } else if (S_ISFIFO(about.st_mode) || isatty(fd) == 1) {
    own_fd_ = OpenAgain(fd);
  }
}

int PatientOutput::Write(absl::string_view bytes) {
  if (fd() >= 0) {
    waiting_.append(bytes.data(), bytes.size());
    return waiting() >= kFlushBytes ? Flush() : 0;
  }
  return std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size() ? 0 : errno;
}

ssize_t PatientOutput::WriteSome() {
  const char* const from = waiting_.data() + written_;
  if (socket_ >= 0) return send(socket_, from, waiting(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return write(own_fd_.get(), from, waiting());
}

int PatientOutput::Flush() {
  if (fd() < 0) return std::fflush(file_) == 0 ? 0 : errno;
  while (waiting() > 0) {
    const ssize_t result = WriteSome();
    if (result >= 0) {
      written_ += static_cast<size_t>(result);
    } else if (errno == EAGAIN || errno == EINTR) {
      // A terminal signals a background job that may not write to it (stty tostop).
      break;
    } else {
      const int error = errno;
      waiting_.clear();
      written_ = 0;
      return error;
    }
  }
  if (waiting() == 0) {
    waiting_.clear();
    written_ = 0;
  } else if (written_ >= kCutBytes && written_ >= waiting()) {
    waiting_.erase(0, written_);
    written_ = 0;
  }
  return 0;
}

PatientOutputs::PatientOutputs(std::FILE* out, std::FILE* err) : out_(out) {
  if (!IsOnePlace(out, err)) own_err_ = std::make_unique<PatientOutput>(err);
}

int PatientOutputs::Flush() {
  const int error = out_.Flush();
  const int err_error = own_err_ != nullptr ? own_err_->Flush() : 0;
  return error != 0 ? error : err_error;
}

void PatientOutputs::AddPolled(std::vector<pollfd>& polled) const {
  if (out_.waiting() > 0) polled.push_back({out_.fd(), POLLOUT, 0});
  if (own_err_ != nullptr && own_err_->waiting() > 0) {
    polled.push_back({own_err_->fd(), POLLOUT, 0});
  }
}

}  // namespace ferry
