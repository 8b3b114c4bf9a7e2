// SPDX-License-Identifier: Apache-2.0
// Calls malloc_trim periodically.
#include "coord/server/memory_trim.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/clock.h"

namespace ferry::coord {
namespace {

// The resident bytes of this process; 0 if unknown.
size_t ResidentBytes() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/statm", "re"),
                                                             std::fclose);
  size_t total = 0;
  size_t resident = 0;
  if (file == nullptr || std::fscanf(file.get(), "%zu %zu", &total, &resident) != 2) return 0;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

bool TrimPolicy::IsDue(size_t resident, absl::Time now) {
  const bool has_grown = resident > resident_after_ + resident_after_ / 4;
  if (resident < kSmallBytes || has_grown) period_ = kShortest;
  if (resident < kSmallBytes) return false;
  // At most 0.2 % of the time.
  return now - last_ >= std::max(period_, 500 * took_);
}

void TrimPolicy::NoteDone(size_t resident_before, size_t resident_after, absl::Time now,
                          absl::Duration took) {
  const bool was_worth_it = resident_after < resident_before - resident_before / 8;
  period_ = was_worth_it ? kShortest : std::min(2 * period_, kLongest);
  resident_after_ = resident_after;
  last_ = now;
  took_ = took;
}

void MemoryTrim::Step() {
#ifdef __GLIBC__
  const absl::Time now = SteadyClock().Now();
  const size_t before = ResidentBytes();
  if (!policy_.IsDue(before, now)) return;
  malloc_trim(0);
  policy_.NoteDone(before, ResidentBytes(), now, SteadyClock().Now() - now);
#endif
}

}  // namespace ferry::coord
