// SPDX-License-Identifier: Apache-2.0
// UsedUpDescriptors: this process has as many as it may have, as after a leak.
#ifndef FERRY_TESTS_SUPPORT_USED_UP_DESCRIPTORS_H_
#define FERRY_TESTS_SUPPORT_USED_UP_DESCRIPTORS_H_

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace ferry {

// A lower limit alone is another case: then no caller gets one, not even after closing one.
class UsedUpDescriptors final {
 public:
  UsedUpDescriptors() {
    FERRY_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlim_t highest = 0;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
      highest = std::max<rlim_t>(highest, std::stoul(each.path().filename()));
    }
    rlimit limit = before_;
    limit.rlim_cur = std::min(highest + 1, before_.rlim_max);
    FERRY_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int fd = dup(STDERR_FILENO); fd >= 0; fd = dup(STDERR_FILENO)) used_.emplace_back(fd);
  }
  ~UsedUpDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  UsedUpDescriptors(const UsedUpDescriptors&) = delete;
  UsedUpDescriptors& operator=(const UsedUpDescriptors&) = delete;

 private:
  rlimit before_ = {};
  std::vector<UniqueFd> used_;
};

}  // namespace ferry

#endif  // FERRY_TESTS_SUPPORT_USED_UP_DESCRIPTORS_H_
