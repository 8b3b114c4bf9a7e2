// SPDX-License-Identifier: Apache-2.0
// RecentRequestIds: how many ids are remembered, and released ids.
#include "rendezvous/recent_request_ids.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace ferry {
namespace {

TEST(RecentRequestIds, WindowIsFull_TheOldestIsForgotten) {
  RecentRequestIds ids(3);
  for (const int64_t id : {1, 2, 3}) EXPECT_TRUE(ids.TrackUnique(id, "Recv").ok());
  // A refused id does not occupy an entry.
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(ids.TrackUnique(2, "Recv").code(), absl::StatusCode::kAborted);
  }
  EXPECT_TRUE(ids.Contains(1));
  EXPECT_TRUE(ids.TrackUnique(4, "Recv").ok());
  EXPECT_FALSE(ids.Contains(1));
  for (const int64_t id : {2, 3, 4}) EXPECT_TRUE(ids.Contains(id)) << id;
  // And once more around the ring.
  EXPECT_TRUE(ids.TrackUnique(1, "Recv").ok());
  EXPECT_FALSE(ids.Contains(2));
  for (const int64_t id : {3, 4, 1}) EXPECT_TRUE(ids.Contains(id)) << id;
}

// Clients without ids send 0.
TEST(RecentRequestIds, ZeroIsNoId) {
  RecentRequestIds ids(1);
  EXPECT_TRUE(ids.TrackUnique(7, "Recv").ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(ids.TrackUnique(0, "Recv").ok());
  EXPECT_FALSE(ids.Contains(0));
  EXPECT_TRUE(ids.Contains(7));
}

// When the ring reaches the entry of the first use, it must not remove that of the second.
TEST(RecentRequestIds, ForgottenIdIsUsedAgain_ItIsRememberedForAFullWindow) {
  RecentRequestIds ids(2);
  uint64_t first = 0;
  ASSERT_TRUE(ids.TrackUnique(1, "Recv", &first).ok());
  ids.Forget(1, first);
  EXPECT_FALSE(ids.Contains(1));
  ASSERT_TRUE(ids.TrackUnique(1, "Recv").ok());
  ASSERT_TRUE(ids.TrackUnique(2, "Recv").ok());
  EXPECT_TRUE(ids.Contains(1));
  ASSERT_TRUE(ids.TrackUnique(3, "Recv").ok());
  EXPECT_FALSE(ids.Contains(1));
}

// A first request that fails late, when its retry has come already.
TEST(RecentRequestIds, ForgetOfAnEarlierUse_LeavesTheLaterOne) {
  RecentRequestIds ids(4);
  uint64_t first = 0;
  uint64_t second = 0;
  ASSERT_TRUE(ids.TrackUnique(1, "Recv", &first).ok());
  ids.Forget(1, first);
  ASSERT_TRUE(ids.TrackUnique(1, "Recv", &second).ok());
  EXPECT_NE(first, second);
  ids.Forget(1, first);
  EXPECT_TRUE(ids.Contains(1));
  ids.Forget(1, second);
  EXPECT_FALSE(ids.Contains(1));
}

}  // namespace
}  // namespace ferry
