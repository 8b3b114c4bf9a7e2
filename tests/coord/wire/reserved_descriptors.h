// SPDX-License-Identifier: Apache-2.0
// The descriptors that a coordinator reserves for clients other than PyTorch's, as the only ones
// left.
#ifndef FERRY_TESTS_COORD_WIRE_RESERVED_DESCRIPTORS_H_
#define FERRY_TESTS_COORD_WIRE_RESERVED_DESCRIPTORS_H_

#include <fcntl.h>
#include <sys/resource.h>

#include <vector>

#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace ferry::coord {

// While it lives, none of this process's free descriptors is below three quarters of its limit.
class OnlyReservedDescriptorsLeft final {
 public:
  OnlyReservedDescriptorsLeft() {
    FERRY_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    // How many the server has open differs by what its libraries have opened yet, and the reserve
    // has to hold what client and server open meanwhile: a third of those in use.
    do {
      fillers_.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
      FERRY_CHECK(fillers_.back().valid());
    } while (fillers_.back().get() < 95);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(fillers_.back().get() + 1) * 4 / 3;
    FERRY_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  }
  ~OnlyReservedDescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }
  OnlyReservedDescriptorsLeft(const OnlyReservedDescriptorsLeft&) = delete;
  OnlyReservedDescriptorsLeft& operator=(const OnlyReservedDescriptorsLeft&) = delete;

 private:
  rlimit before_ = {};
  std::vector<UniqueFd> fillers_;
};

}  // namespace ferry::coord

#endif  // FERRY_TESTS_COORD_WIRE_RESERVED_DESCRIPTORS_H_
