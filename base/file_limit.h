// SPDX-License-Identifier: Apache-2.0
// How many descriptors this process may have open.
#ifndef FERRY_BASE_FILE_LIMIT_H_
#define FERRY_BASE_FILE_LIMIT_H_

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace ferry {

// Raises the soft limit to the hard one, as a server of many connections may; shells and systemd
// give 1024 for the sake of programs that use select(). Returns the limit as it is then.
inline int64_t RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

// For errors of libraries that do not say so: " (all 1024 descriptors of this process are in use:
// raise `ulimit -n`)" if none can be opened just now, else nothing.
inline std::string WhyNoDescriptor() {
  const int probe = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (probe >= 0) close(probe);
  if (probe >= 0 || errno != EMFILE) return "";
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::StrCat(" (all ", limit.rlim_cur,
                      " descriptors of this process are in use: raise `ulimit -n`)");
}

}  // namespace ferry

#endif  // FERRY_BASE_FILE_LIMIT_H_
