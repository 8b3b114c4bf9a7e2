// SPDX-License-Identifier: Apache-2.0
// RetryBackoff: when to retry what keeps failing.
#ifndef FERRY_TRANSPORT_NCCL_RETRY_BACKOFF_H_
#define FERRY_TRANSPORT_NCCL_RETRY_BACKOFF_H_

#include <algorithm>

#include "absl/time/time.h"

namespace ferry {

// A second after the first failure, and after each further one twice as long as before, up to a
// minute.
class RetryBackoff final {
 public:
  static constexpr absl::Duration kFirst = absl::Seconds(1);
  static constexpr absl::Duration kLongest = absl::Seconds(60);

  // Failures reported before a retry is due are of the same attempt, and count once.
  void Failed(absl::Time now) {
    if (!IsDue(now)) return;
    backoff_ = std::clamp(2 * backoff_, kFirst, kLongest);
    retry_at_ = now + backoff_;
  }
  void Succeeded() { *this = RetryBackoff(); }

  bool IsDue(absl::Time now) const { return now >= retry_at_; }
  // Time until a retry is due; not positive: it is.
  absl::Duration Left(absl::Time now) const { return retry_at_ - now; }

 private:
  absl::Duration backoff_;
  absl::Time retry_at_ = absl::InfinitePast();
};

}  // namespace ferry

#endif  // FERRY_TRANSPORT_NCCL_RETRY_BACKOFF_H_
