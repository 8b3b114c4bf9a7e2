// SPDX-License-Identifier: Apache-2.0
// MemoryTrim: returns freed memory to the operating system.
#ifndef FERRY_COORD_SERVER_MEMORY_TRIM_H_
#define FERRY_COORD_SERVER_MEMORY_TRIM_H_

#include <cstddef>

#include "absl/time/time.h"

namespace ferry::coord {

// Decides when to trim. The allocator keeps free memory between blocks in use, which can be nearly
// all of the peak; but a trim takes time, during which other threads wait for allocations. Pure;
// not thread-safe.
class TrimPolicy final {
 public:
  // Smaller processes are not trimmed.
  static constexpr size_t kSmallBytes = size_t{128} << 20;

  // Returns true if a trim is due now, with `resident` bytes resident.
  bool IsDue(size_t resident, absl::Time now);
  // A trim ended at `now` and took `took`.
  void NoteDone(size_t resident_before, size_t resident_after, absl::Time now, absl::Duration took);

 private:
  static constexpr absl::Duration kShortest = absl::Seconds(2);
  static constexpr absl::Duration kLongest = absl::Minutes(1);

  absl::Time last_ = absl::InfinitePast();
  absl::Duration took_;
  size_t resident_after_ = 0;
  // Grows while trims release little.
  absl::Duration period_ = kShortest;
};

// Trims this process. Call it about once a second; not thread-safe.
class MemoryTrim final {
 public:
  void Step();

 private:
  TrimPolicy policy_;
};

}  // namespace ferry::coord

#endif  // FERRY_COORD_SERVER_MEMORY_TRIM_H_
