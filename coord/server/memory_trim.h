// SPDX-License-Identifier: Apache-2.0
// MemoryTrim: gives memory that has been freed back to the machine.
#ifndef FERRY_COORD_SERVER_MEMORY_TRIM_H_
#define FERRY_COORD_SERVER_MEMORY_TRIM_H_

#include <cstddef>

#include "absl/time/time.h"

namespace ferry::coord {

// When it is worth it. The allocator keeps what lies between blocks that are in use, and that can
// be nearly all that there ever was; but to look for it takes time, in which others wait for
// memory. Pure; not thread-safe.
class TrimPolicy final {
 public:
  // A process of so few bytes is left alone.
  static constexpr size_t kSmallBytes = size_t{128} << 20;

  // Whether to do it now, when so many bytes are resident.
  bool IsDue(size_t resident, absl::Time now);
  // It has been done at `now`, and took so long.
  void NoteDone(size_t resident_before, size_t resident_after, absl::Time now, absl::Duration took);

 private:
  static constexpr absl::Duration kShortest = absl::Seconds(2);
  static constexpr absl::Duration kLongest = absl::Minutes(1);

  absl::Time last_ = absl::InfinitePast();
  absl::Duration took_;
  size_t resident_after_ = 0;
  // Longer and longer while there is little to give back.
  absl::Duration period_ = kShortest;
};

// Looks at this process. To be called about once a second; not thread-safe.
class MemoryTrim final {
 public:
  void Step();

 private:
  TrimPolicy policy_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_MEMORY_TRIM_H_
