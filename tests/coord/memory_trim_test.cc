// SPDX-License-Identifier: Apache-2.0
// When freed memory is worth looking for.
#include "coord/server/memory_trim.h"

#include <gtest/gtest.h>

namespace ferry::coord {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr absl::Duration kQuick = absl::Milliseconds(1);

class TrimPolicyTest : public ::testing::Test {
 protected:
  // Looks once a second for so long while `resident` bytes are there, of which `in_use` are left
  // each time; returns how often it was done.
  int Watch(absl::Duration span, size_t resident, size_t in_use, absl::Duration took = kQuick) {
    int done = 0;
    for (const absl::Time end = now_ + span; now_ < end; now_ += absl::Seconds(1)) {
      if (!policy_.IsDue(resident, now_)) continue;
      policy_.NoteDone(resident, in_use, now_, took);
      ++done;
    }
    return done;
  }

  TrimPolicy policy_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(TrimPolicyTest, SmallProcessIsNotTrimmed) {
  EXPECT_EQ(Watch(absl::Hours(1), 100 * kMiB, 10 * kMiB), 0);
}

TEST_F(TrimPolicyTest, FreeMemoryIsReturnedSoon) {
  EXPECT_EQ(Watch(absl::Seconds(1), 2000 * kMiB, 60 * kMiB), 1);
  EXPECT_EQ(Watch(absl::Hours(1), 60 * kMiB, 60 * kMiB), 0);
  EXPECT_GE(Watch(absl::Seconds(3), 2000 * kMiB, 60 * kMiB), 1);
}

// A store that is full of values must not be searched every other second indefinitely.
TEST_F(TrimPolicyTest, MemoryInUseIsCheckedLessAndLessOften) {
  EXPECT_LE(Watch(absl::Hours(1), 2000 * kMiB, 1990 * kMiB), 70);
  // Memory that is freed later is returned in the end, and memory freed after that soon.
  EXPECT_GE(Watch(absl::Minutes(1), 2000 * kMiB, 60 * kMiB), 1);
  EXPECT_LE(Watch(absl::Hours(1), 2000 * kMiB, 1990 * kMiB), 70);
  EXPECT_GE(Watch(absl::Seconds(3), 4000 * kMiB, 2000 * kMiB), 1);
}

// No thread can allocate meanwhile.
TEST_F(TrimPolicyTest, TakesOnlyASmallShareOfTheTime) {
  EXPECT_LE(Watch(absl::Hours(1), 8000 * kMiB, 1000 * kMiB, absl::Seconds(1)), 8);
}

}  // namespace
}  // namespace ferry::coord
