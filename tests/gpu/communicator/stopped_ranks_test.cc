// SPDX-License-Identifier: Apache-2.0
// Reports of ranks that have stopped their operations.
#include "gpu/communicator/stopped_ranks.h"

#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ferry {
namespace {

class StoppedRanksTest : public ::testing::Test {
 protected:
  const CommunicatorKey key_ = *CommunicatorKey::Create({{4, 1000}, {5, 1001}, {7, 1002}});
  StoppedRanks ranks_{key_, 1, nullptr};
};

TEST_F(StoppedRanksTest, AllOthersMustReport) {
  EXPECT_FALSE(ranks_.HaveOthersStopped(3));
  ranks_.OnEntry(key_.StoppedKey(3, 0));
  EXPECT_FALSE(ranks_.HaveOthersStopped(3));
  EXPECT_EQ(ranks_.DescribeMissing(3), key_.DescribeRanks({2}));
  ranks_.OnEntry(key_.StoppedKey(3, 2));
  EXPECT_TRUE(ranks_.HaveOthersStopped(3));
}

TEST_F(StoppedRanksTest, ReportsOfOtherGenerationsDoNotCount) {
  for (const uint32_t generation : {1, 2, 4}) {
    ranks_.OnEntry(key_.StoppedKey(generation, 0));
    ranks_.OnEntry(key_.StoppedKey(generation, 2));
  }
  EXPECT_FALSE(ranks_.HaveOthersStopped(3));
  EXPECT_TRUE(ranks_.HaveOthersStopped(4));
}

TEST_F(StoppedRanksTest, OtherEntriesDoNotCount) {
  for (const std::string& entry :
       {key_.PresenceKey(3, 0), key_.NumberKey(3, 0), key_.GenerationKey(),
        absl::StrCat(key_.StoppedKey(3, 0), "/x"), absl::StrCat("x", key_.StoppedKey(3, 0)),
        absl::StrCat(key_.GenerationPrefix(3), "stopped/"),
        absl::StrCat(key_.GenerationPrefix(3), "stopped/-1"),
        absl::StrCat(key_.GenerationPrefix(3), "stopped/3"),
        absl::StrCat(key_.GenerationPrefix(3), "stopped/99999999999"), std::string()}) {
    ranks_.OnEntry(entry);
  }
  ranks_.OnEntry(key_.StoppedKey(3, 2));
  EXPECT_EQ(ranks_.DescribeMissing(3), key_.DescribeRanks({0}));
}

TEST_F(StoppedRanksTest, RankWhoseProcessHasEndedIsNotWaitedFor) {
  uint64_t gone = 0;
  StoppedRanks ranks(
      key_, 1, [&gone](const CommunicatorMember& member) { return member.incarnation == gone; });
  ranks.OnEntry(key_.StoppedKey(1, 0));
  EXPECT_FALSE(ranks.HaveOthersStopped(1));
  gone = 1002;
  EXPECT_TRUE(ranks.HaveOthersStopped(1));
}

TEST_F(StoppedRanksTest, IgnoredRanksAreNotWaitedFor) {
  ranks_.IgnoreAll();
  EXPECT_TRUE(ranks_.HaveOthersStopped(1));
  EXPECT_TRUE(ranks_.HaveOthersStopped(2));
}

}  // namespace
}  // namespace ferry
