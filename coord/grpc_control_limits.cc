// SPDX-License-Identifier: Apache-2.0
// Limits by kind of request.
#include "coord/grpc_control_limits.h"

#include <algorithm>
#include <limits>

namespace ferry::coord {

absl::Duration WaitTime(int64_t milliseconds) {
  if (milliseconds < 0) return absl::ZeroDuration();
  return std::min(absl::Milliseconds(milliseconds), absl::Hours(24 * 7));
}

size_t MostBehind(const v1::Request& request) {
  switch (request.op_case()) {
    case v1::Request::kGetJobStatus:
    case v1::Request::kWatchTasks:
      return size_t{64} << 20;
    case v1::Request::kGet:
    case v1::Request::kList:
    case v1::Request::kWatch:
      return size_t{1} << 30;
    default:
      return std::numeric_limits<size_t>::max();
  }
}

}  // namespace ferry::coord
