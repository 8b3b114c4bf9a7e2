// SPDX-License-Identifier: Apache-2.0
// The orders in which a device's transfers are found: by peer, and by deadline.
#include "transport/nccl/transfer_table.h"

#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

using ::testing::ElementsAre;

class TransferTableTest : public ::testing::Test {
 protected:
  static constexpr DeviceId kSelf{1};
  static constexpr DeviceId kPeer{2};

  static TransferKey Key(uint64_t id) { return {kSelf, kPeer, id}; }
  static absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  void Add(uint64_t id, uint64_t bytes, int deadline) {
    const absl::Status added =
        table_.Add({.key = Key(id), .bytes = bytes, .deadline = At(deadline)}, At(0));
    EXPECT_TRUE(added.ok()) << added;
  }

  TransferTable table_{kSelf};
};

// A declined grant must not put its transfers behind later ones.
TEST_F(TransferTableTest, PendingAgain_GetsItsOldPosition) {
  for (const uint64_t id : {9, 5, 7}) Add(id, 1, 10);
  table_.SetPhase(Key(9), TransferPhase::kGranted);
  EXPECT_THAT(table_.PendingWith(kPeer), ElementsAre(Key(5), Key(7)));
  EXPECT_EQ(table_.PositionOf(Key(9)), 0);
  table_.SetPhase(Key(9), TransferPhase::kPending);
  EXPECT_THAT(table_.PendingWith(kPeer), ElementsAre(Key(9), Key(5), Key(7)));
  EXPECT_EQ(table_.queued_count(), table_.pending_count());
}

TEST_F(TransferTableTest, LastPendingOneRemoved_PeerHasNone) {
  Add(1, 1, 10);
  EXPECT_TRUE(table_.HasPending(kPeer));
  table_.Remove(Key(1));
  EXPECT_FALSE(table_.HasPending(kPeer));
  EXPECT_EQ(table_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(TransferTableTest, OldestPending_StopsAtBytesAndCount) {
  Add(1, 100, 10);
  Add(2, 50, 10);
  Add(3, 1, 10);
  // A transfer larger than a batch has one of its own.
  EXPECT_THAT(table_.OldestPending(kPeer, 32, 10), ElementsAre(Key(1)));
  EXPECT_THAT(table_.OldestPending(kPeer, 32, 149), ElementsAre(Key(1)));
  EXPECT_THAT(table_.OldestPending(kPeer, 32, 150), ElementsAre(Key(1), Key(2)));
  EXPECT_THAT(table_.OldestPending(kPeer, 2, 1000), ElementsAre(Key(1), Key(2)));
}

TEST_F(TransferTableTest, DeadlinePutOff_IsDueLater) {
  Add(1, 1, 10);
  Add(2, 1, 5);
  EXPECT_THAT(table_.DueAt(At(10)), ElementsAre(Key(2), Key(1)));
  table_.SetDeadline(Key(2), At(20));
  EXPECT_THAT(table_.DueAt(At(10)), ElementsAre(Key(1)));
  EXPECT_EQ(table_.deadline_count(), 2);
}

}  // namespace
}  // namespace ferry
