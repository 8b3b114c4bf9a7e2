// SPDX-License-Identifier: Apache-2.0
// Which communicators can be made of others.
#include "gpu/communicator/communicator_origin.h"

#include <gtest/gtest.h>

#include "gpu/communicator/communicator_key.h"

namespace ferry {
namespace {

constexpr int kNew = 23203;

std::optional<RankOrigin> Held(int rank, int size, uint64_t id = 0xabc, uint32_t generation = 2) {
  return RankOrigin{.id = id, .generation = generation, .rank = rank, .size = size};
}
std::optional<RankOrigin> Joins() { return RankOrigin{}; }

TEST(ChooseCommunicatorWayTest, SurvivorsShrink) {
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 3), Held(2, 3)}), CommunicatorWay::kShrink);
  // The first one is gone.
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(1, 3), Held(2, 3)}), CommunicatorWay::kShrink);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(1, 2)}), CommunicatorWay::kShrink);
}

TEST(ChooseCommunicatorWayTest, NewMembersComeLast) {
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 2), Held(1, 2), Joins()}), CommunicatorWay::kGrow);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 1), Joins(), Joins()}), CommunicatorWay::kGrow);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 2), Joins(), Held(1, 2)}),
            CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Joins(), Held(0, 1)}), CommunicatorWay::kCreate);
}

TEST(ChooseCommunicatorWayTest, OtherChangesAreCreated) {
  // None has changed, one has left and one joined, another order.
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 2), Held(1, 2)}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 2), Joins()}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(2, 3), Held(0, 3)}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Joins(), Joins()}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {}), CommunicatorWay::kCreate);
}

TEST(ChooseCommunicatorWayTest, AllMustHoldTheSame) {
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 3), Held(1, 3, 0xdef)}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 3), Held(1, 3, 0xabc, 3)}),
            CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 3), Held(1, 4)}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 3), Held(0, 3)}), CommunicatorWay::kCreate);
}

TEST(ChooseCommunicatorWayTest, OneThatOffersNothingDecidesForAll) {
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 3), std::nullopt}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {std::nullopt, Held(2, 3)}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(kNew, {Held(0, 2), Held(1, 2), std::nullopt}),
            CommunicatorWay::kCreate);
}

TEST(ChooseCommunicatorWayTest, OlderLibrariesCannot) {
  EXPECT_EQ(ChooseCommunicatorWay(22806, {Held(0, 3), Held(2, 3)}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(22807, {Held(0, 3), Held(2, 3)}), CommunicatorWay::kShrink);
  EXPECT_EQ(ChooseCommunicatorWay(22901, {Held(0, 1), Joins()}), CommunicatorWay::kCreate);
  EXPECT_EQ(ChooseCommunicatorWay(22902, {Held(0, 1), Joins()}), CommunicatorWay::kGrow);
}

TEST(RankOriginTest, PresenceCarriesIt) {
  for (const std::optional<RankOrigin>& origin :
       {std::optional<RankOrigin>(), Joins(), Held(3, 8, 0xfedcba9876543210, 4000000000)}) {
    const std::string text =
        EncodeRankPresence({.nccl_version = 22902, .incarnation = 0x5f3c, .origin = origin});
    const absl::StatusOr<RankPresence> decoded = DecodeRankPresence(text);
    ASSERT_TRUE(decoded.ok()) << text;
    EXPECT_EQ(decoded->nccl_version, 22902);
    EXPECT_EQ(decoded->incarnation, 0x5f3cu);
    EXPECT_EQ(decoded->origin, origin) << text;
  }
  // As before there were origins.
  EXPECT_EQ(EncodeRankPresence({.nccl_version = 22902, .incarnation = 0x5f3c}), "22902 5f3c");
  for (const char* const text : {"1 2 ", "1 2 3", "1 2 a:1:0", "1 2 a:1:2:2", "1 2 a:1:-1:2",
                                 "1 2 a:1:0:2 x", "1 2 leaves"}) {
    EXPECT_FALSE(DecodeRankPresence(text).ok()) << text;
  }
}

TEST(RankOriginTest, IdsNameTheWay) {
  const std::string id(kNcclUniqueIdBytes, 'i');
  for (const CommunicatorUniqueIds& ids :
       {CommunicatorUniqueIds{22902, 7, {id, id}},
        CommunicatorUniqueIds{22902, 7, {}, CommunicatorWay::kShrink},
        CommunicatorUniqueIds{22902, 7, {id}, CommunicatorWay::kGrow}}) {
    const absl::StatusOr<CommunicatorUniqueIds> decoded =
        DecodeCommunicatorUniqueIds(EncodeCommunicatorUniqueIds(ids));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, ids);
  }
  // One id too many or too few for the way.
  EXPECT_FALSE(DecodeCommunicatorUniqueIds(EncodeCommunicatorUniqueIds({22902, 7, {}})).ok());
  EXPECT_FALSE(DecodeCommunicatorUniqueIds(
                   EncodeCommunicatorUniqueIds({22902, 7, {id}, CommunicatorWay::kShrink}))
                   .ok());
  EXPECT_FALSE(DecodeCommunicatorUniqueIds(
                   EncodeCommunicatorUniqueIds({22902, 7, {}, CommunicatorWay::kGrow}))
                   .ok());
}

}  // namespace
}  // namespace ferry
