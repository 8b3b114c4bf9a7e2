// SPDX-License-Identifier: Apache-2.0
// How many descriptors this process may have open.
#ifndef FERRY_BASE_FILE_LIMIT_H_
#define FERRY_BASE_FILE_LIMIT_H_

#include <sys/resource.h>

#include <cstdint>

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

}  // namespace ferry

#endif  // FERRY_BASE_FILE_LIMIT_H_
