// SPDX-License-Identifier: Apache-2.0
// Reads the descriptor limit and counts free descriptor numbers.
#include "base/file_limit.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

std::string SoftLimitText() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "not known";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit.rlim_cur);
}

}  // namespace

int64_t RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string WhyNoDescriptor() {
  const int probe = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (probe >= 0) close(probe);
  if (probe >= 0 || errno != EMFILE) return "";
  return absl::StrCat(" (all ", SoftLimitText(),
                      " descriptors of this process are in use: raise `ulimit -n`)");
}

std::string FileLimitHint(int error) {
  if (error == EMFILE) {
    return absl::StrCat(" (raise `ulimit -n`, which is ", SoftLimitText(), ")");
  }
  if (error == ENFILE) return " (the whole machine's limit: raise `sysctl fs.file-max`)";
  return "";
}

std::string ErrorWithFileLimit(int error) {
  return absl::StrCat(std::strerror(error), FileLimitHint(error));
}

absl::Status CheckFileRoom(int count) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return absl::OkStatus();
  }
  // New descriptors get the lowest free number below the limit; those above it were opened before
  // it was lowered.
  int left = 0;
  for (rlim_t fd = 0; fd < limit.rlim_cur; ++fd) {
    if (fcntl(static_cast<int>(fd), F_GETFD) < 0 && errno == EBADF && ++left >= count) {
      return absl::OkStatus();
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("only ", left, " more descriptors can be opened, but this process needs about ",
                   count, ": ", ErrorWithFileLimit(EMFILE)));
}

}  // namespace ferry
