// SPDX-License-Identifier: Apache-2.0
// Which hashes are remembered, for how long, and how often another one is taken for them.
#include "rendezvous/peer/recent_hashes.h"

#include <random>

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(RecentHashes, LastOnesAreRemembered) {
  for (const size_t count : {1, 2, 3, 100, 16384}) {
    SCOPED_TRACE(count);
    RecentHashes hashes(count);
    for (uint64_t first = 0; first < 5 * count; first += count) {
      for (uint64_t i = first; i < first + count; ++i) hashes.Add(i);
      for (uint64_t i = first; i < first + count; ++i) EXPECT_TRUE(hashes.Add(i));
    }
  }
}

TEST(RecentHashes, OlderOnesAreForgotten) {
  constexpr size_t kCount = 1000;
  RecentHashes hashes(kCount);
  for (uint64_t i = 0; i < 4 * kCount; ++i) hashes.Add(i);
  RecentHashes copy = hashes;
  size_t known = 0;
  for (uint64_t i = 0; i < kCount; ++i) known += copy.Add(i) ? 1 : 0;
  EXPECT_LT(known, kCount / 4);
  EXPECT_NE(copy.State(), hashes.State());
}

TEST(RecentHashes, FewHashesAreTakenForOthers) {
  constexpr size_t kCount = 16384;
  RecentHashes hashes(kCount);
  std::mt19937_64 random(1);
  size_t taken = 0;
  for (size_t i = 0; i < 10 * kCount; ++i) taken += hashes.Add(random()) ? 1 : 0;
  EXPECT_LT(taken, kCount) << "a tenth";
}

}  // namespace
}  // namespace ferry
