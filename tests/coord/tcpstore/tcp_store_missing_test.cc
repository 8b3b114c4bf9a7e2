// SPDX-License-Identifier: Apache-2.0
// The keys for which a store's clients wait, and the ranks that have not set theirs.
#include "coord/tcpstore/tcp_store_missing.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ferry::coord {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kStart = absl::FromUnixSeconds(1000);

TcpStoreWaitInfo Wait(std::vector<std::string> keys, int after_s = 0) {
  return {.keys = std::move(keys), .since = kStart + absl::Seconds(after_s)};
}

std::vector<MissingTcpStoreKey> Missing(const std::set<std::string>& present,
                                        const std::vector<TcpStoreWaitInfo>& waits,
                                        size_t max_keys = 8) {
  const auto for_each_key = [&present](absl::string_view prefix,
                                       absl::FunctionRef<bool(absl::string_view)> visit) {
    for (const std::string& key : present) {
      if (absl::StartsWith(key, prefix) && !visit(key)) return;
    }
  };
  return MissingTcpStoreKeys(waits, for_each_key, max_keys);
}

TEST(MissingTcpStoreKeys, NobodyWaits_IsNone) { EXPECT_THAT(Missing({"/a/0"}, {}), IsEmpty()); }

TEST(MissingTcpStoreKeys, OthersOfTheGroupExist_NamesTheRank) {
  const auto missing = Missing(
      {"/pg/0//cpu//0/0", "/pg/0//cpu//0/1", "/pg/0//cpu//0/2"},
      {Wait({"/pg/0//cpu//0/3"}, 5), Wait({"/pg/0//cpu//0/3"}, 2), Wait({"/pg/0//cpu//0/3"}, 9)});
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_EQ(missing[0].key, "/pg/0//cpu//0/3");
  EXPECT_THAT(missing[0].ranks, ElementsAre(3));
  EXPECT_EQ(missing[0].clients, 3u);
  EXPECT_EQ(missing[0].since, kStart + absl::Seconds(2));
}

// Ranks wait for the others one after another, so no client waits for rank 5 yet.
TEST(MissingTcpStoreKeys, SeveralRanksAreAbsent_NamesThoseBelowAnotherThatIsThere) {
  const auto missing =
      Missing({"/g/0", "/g/1", "/g/2", "/g/4", "/g/6", "/g/x"}, {Wait({"/g/3"}), Wait({"/g/3"})});
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_THAT(missing[0].ranks, ElementsAre(3, 5));
}

TEST(MissingTcpStoreKeys, RankZeroIsAbsent_IsNamed) {
  const auto missing = Missing({"/g/1", "/g/2"}, {Wait({"/g/0"})});
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_THAT(missing[0].ranks, ElementsAre(0));
}

TEST(MissingTcpStoreKeys, WaitOfSeveralKeysOfAGroup_IsOneEntryAndOneClient) {
  const auto missing = Missing({"/g/0"}, {Wait({"/g/1", "/g/2", "/g/4"}), Wait({"/g/2"})});
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_EQ(missing[0].key, "/g/1");
  EXPECT_THAT(missing[0].ranks, ElementsAre(1, 2, 4));
  EXPECT_EQ(missing[0].clients, 2u);
}

TEST(MissingTcpStoreKeys, KeyThatIsNoRanks_NamesNone) {
  const std::set<std::string> present = {"/g/0", "/pg//cuda//0", "/step/10", "/n/0", "/k"};
  for (const char* key : {"/other/1",      // no group
                          "/pg//cuda//1",  // the second communicator of NCCL
                          "/step/11",      // a group without a rank 0
                          "/n/01", "/n/-1", "/n/99999999", "/n/", "/n/1x", "1", ""}) {
    const auto missing = Missing(present, {Wait({key})});
    ASSERT_THAT(missing, SizeIs(1)) << key;
    EXPECT_EQ(missing[0].key, key);
    EXPECT_THAT(missing[0].ranks, IsEmpty()) << key;
  }
}

TEST(MissingTcpStoreKeys, Barrier_TellsArrivals) {
  TcpStoreWaitInfo wait = Wait({"/g/1"});
  wait.is_barrier = true;
  wait.world_size = 4;
  wait.arrived = 3;
  const auto missing = Missing({"/g/0"}, {wait, wait});
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_THAT(missing[0].ranks, IsEmpty());
  EXPECT_EQ(missing[0].world_size, 4);
  EXPECT_EQ(missing[0].arrived, 3);
  EXPECT_EQ(missing[0].clients, 2u);
}

TEST(MissingTcpStoreKeys, MoreKeysThanTheLimit_KeepsThoseOfMostWaits) {
  const auto missing =
      Missing({}, {Wait({"/a"}), Wait({"/b"}), Wait({"/c"}), Wait({"/c"})}, /*max_keys=*/2);
  ASSERT_THAT(missing, SizeIs(2));
  EXPECT_EQ(missing[0].key, "/c");
  EXPECT_EQ(missing[1].key, "/a");
}

// Tens of thousands of keys in a wait are legal.
TEST(MissingTcpStoreKeys, WaitOfManyKeys_CountsTheFirstOnes) {
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back(absl::StrCat("/k", i));
  EXPECT_THAT(Missing({}, {Wait(keys)}, /*max_keys=*/500), SizeIs(64));
}

// A group may have millions of keys, of which few are ranks'.
TEST(MissingTcpStoreKeys, GroupOfMoreKeysThanAreListed_NamesThoseWaitedForOnly) {
  size_t listed = 0;
  const auto for_each_key = [&listed](absl::string_view prefix,
                                      absl::FunctionRef<bool(absl::string_view)> visit) {
    if (!visit(absl::StrCat(prefix, "0"))) return;
    if (!visit(absl::StrCat(prefix, "9"))) return;
    while (listed < 10 * kMaxKeysListedForRanks) {
      ++listed;
      if (!visit(absl::StrCat(prefix, "x"))) return;
    }
  };
  const auto missing =
      MissingTcpStoreKeys({Wait({"/g/3"}), Wait({"/h/3"})}, for_each_key, /*max_keys=*/8);
  EXPECT_LE(listed, kMaxKeysListedForRanks + 2);
  ASSERT_THAT(missing, SizeIs(2));
  EXPECT_THAT(missing[0].ranks, ElementsAre(3));
}

}  // namespace
}  // namespace ferry::coord
