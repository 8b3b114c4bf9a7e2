// SPDX-License-Identifier: Apache-2.0
// Keys of communicators, and the values that are stored for their ranks.
#include "gpu/communicator/communicator_key.h"

#include <gmock/gmock.h>

namespace ferry {
namespace {

TEST(CommunicatorKeyTest, DependsOnOrderIncarnationAndEveryDevice) {
  std::vector<CommunicatorMember> many;
  for (int i = 0; i < 20; ++i) many.push_back({i, 1});
  const std::string all = CommunicatorKey::Create(many)->prefix();
  EXPECT_THAT(all, testing::MatchesRegex("nccl/[0-9a-f]{32}/"));
  for (int i = 0; i < 20; ++i) {
    std::vector<CommunicatorMember> other = many;
    other[i].incarnation = 2;
    EXPECT_NE(CommunicatorKey::Create(other)->prefix(), all);
    other[i] = {100, 1};
    EXPECT_NE(CommunicatorKey::Create(other)->prefix(), all);
  }
  std::swap(many[3], many[4]);
  EXPECT_NE(CommunicatorKey::Create(many)->prefix(), all);
  EXPECT_TRUE(CommunicatorKey::Create({{1, 1}}).ok());
  EXPECT_FALSE(CommunicatorKey::Create({}).ok());
  EXPECT_FALSE(CommunicatorKey::Create({{1, 1}, {1, 2}}).ok());
}

TEST(CommunicatorUniqueIdsTest, AnyChangedByteIsDetected) {
  const CommunicatorUniqueIds ids{22809, 77, {std::string(128, 'a'), std::string(128, 'b')}};
  const std::string value = EncodeCommunicatorUniqueIds(ids);
  EXPECT_EQ(*DecodeCommunicatorUniqueIds(value), ids);
  for (size_t i = 0; i < value.size(); ++i) {
    std::string other = value;
    other[i] ^= 1;
    EXPECT_FALSE(DecodeCommunicatorUniqueIds(other).ok()) << i;
    EXPECT_FALSE(DecodeCommunicatorUniqueIds(value.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(DecodeCommunicatorUniqueIds(value + "x").ok());
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

}  // namespace
}  // namespace ferry
