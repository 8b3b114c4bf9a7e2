// SPDX-License-Identifier: Apache-2.0
// Which communicators make room for others.
#include "transport/nccl/communicator_lru.h"

#include <gmock/gmock.h>

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(CommunicatorLru, EvictsTheLeastRecentlyUsed) {
  CommunicatorLru cache(100);
  for (const char* key : {"a", "b", "c"}) {
    EXPECT_THAT(*cache.Reserve(key, 30), IsEmpty());
    cache.Unuse(key);
  }
  EXPECT_TRUE(cache.Use("a"));
  cache.Unuse("a");
  EXPECT_THAT(*cache.Reserve("d", 60), ElementsAre("b", "c"));
  EXPECT_EQ(cache.used_bytes(), 90);
  EXPECT_FALSE(cache.Use("b"));
}

TEST(CommunicatorLru, DoesNotEvictCommunicatorsInUse) {
  CommunicatorLru cache(100);
  ASSERT_TRUE(cache.Reserve("a", 60).ok());
  ASSERT_TRUE(cache.Reserve("b", 30).ok());
  cache.Unuse("b");
  const absl::Status full = cache.Reserve("c", 50).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("of 100 (raise --nccl-memory-bytes"));
  EXPECT_EQ(cache.size(), 2) << "nothing is evicted in vain";
  EXPECT_THAT(*cache.Reserve("c", 40), ElementsAre("b"));
  EXPECT_EQ(cache.Reserve("c", 1).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(cache.Reserve("d", 101).ok());
}

TEST(CommunicatorLru, BrokenCommunicatorIsRemovedAtOnce) {
  CommunicatorLru cache(100);
  ASSERT_TRUE(cache.Reserve("a", 60).ok());
  EXPECT_TRUE(cache.Use("a"));
  cache.Remove("a");
  EXPECT_EQ(cache.used_bytes(), 0);
  cache.Unuse("a");
  EXPECT_THAT(*cache.Reserve("a", 100), IsEmpty());
}

// It would be in the list of idle entries twice, and evicted while it is in use.
TEST(CommunicatorLruDeathTest, IdleCommunicatorIsReleased_EndsTheProcess) {
  CommunicatorLru cache(100);
  ASSERT_TRUE(cache.Reserve("a", 60).ok());
  cache.Unuse("a");
  EXPECT_DEATH(cache.Unuse("a"), "FERRY_CHECK failed: found->second.use_count > 0");
}

TEST(CommunicatorLru, CommunicatorLargerThanEstimated_IsAccountedForByTheNext) {
  CommunicatorLru cache(100);
  ASSERT_TRUE(cache.Reserve("a", 10).ok());
  ASSERT_TRUE(cache.Reserve("b", 10).ok());
  cache.Resize("a", 120);
  EXPECT_EQ(cache.used_bytes(), 130);
  EXPECT_FALSE(cache.Reserve("c", 10).ok());
  cache.Unuse("b");
  cache.Unuse("a");
  EXPECT_THAT(*cache.Reserve("c", 10), ElementsAre("b", "a"));
}

}  // namespace
}  // namespace ferry
