// SPDX-License-Identifier: Apache-2.0
// Keys of communicators, and the values that are stored for their ranks.
#include "gpu/clique/clique_key.h"

#include <gmock/gmock.h>

namespace ferry {
namespace {

TEST(CliqueKeyTest, DependsOnOrderIncarnationAndEveryDevice) {
  std::vector<CliqueMember> many;
  for (int i = 0; i < 20; ++i) many.push_back({i, 1});
  const std::string all = CliqueKey::Create(many)->prefix();
  EXPECT_THAT(all, testing::MatchesRegex("nccl/[0-9a-f]{32}/"));
  for (int i = 0; i < 20; ++i) {
    std::vector<CliqueMember> other = many;
    other[i].incarnation = 2;
    EXPECT_NE(CliqueKey::Create(other)->prefix(), all);
    other[i] = {100, 1};
    EXPECT_NE(CliqueKey::Create(other)->prefix(), all);
  }
  std::swap(many[3], many[4]);
  EXPECT_NE(CliqueKey::Create(many)->prefix(), all);
  EXPECT_TRUE(CliqueKey::Create({{1, 1}}).ok());
  EXPECT_FALSE(CliqueKey::Create({}).ok());
  EXPECT_FALSE(CliqueKey::Create({{1, 1}, {1, 2}}).ok());
}

TEST(CliqueIdsTest, AnyChangedByteIsDetected) {
  const CliqueIds ids{22809, 77, {std::string(128, 'a'), std::string(128, 'b')}};
  const std::string value = EncodeCliqueIds(ids);
  EXPECT_EQ(*DecodeCliqueIds(value), ids);
  for (size_t i = 0; i < value.size(); ++i) {
    std::string other = value;
    other[i] ^= 1;
    EXPECT_FALSE(DecodeCliqueIds(other).ok()) << i;
    EXPECT_FALSE(DecodeCliqueIds(value.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(DecodeCliqueIds(value + "x").ok());
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

}  // namespace
}  // namespace ferry
