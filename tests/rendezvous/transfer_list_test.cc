// SPDX-License-Identifier: Apache-2.0
// TransferList: which transfers are listed, for how long, and which callbacks run when a step ends.
#include "rendezvous/transfer_list.h"

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rendezvous_fixture.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TransferListTest : public ::testing::Test {
 protected:
  // Edges that have been in flight for that long.
  std::vector<std::string> Listed(absl::Duration min_age = absl::ZeroDuration()) const {
    std::vector<std::string> edges;
    list_.ForEach(min_age, [&edges](const PendingStepOp& op) {
      EXPECT_EQ(op.side, PendingStepOp::Side::kTransfer);
      edges.emplace_back(op.key.edge());
    });
    return edges;
  }

  FakeClock clock_;
  TransferList list_{clock_};
};

// Closing a step waits for the listed transfers.
TEST_F(TransferListTest, Removed_IsNotListed) {
  const auto first = list_.Add(1, Key("a"), 10, /*is_kept=*/false);
  const auto second = list_.Add(1, Key("b"), 10, /*is_kept=*/false);
  list_.Remove(first);
  EXPECT_THAT(Listed(), ElementsAre("b"));
  // Removing it again is not an error.
  list_.Remove(first);
  list_.Remove(second);
  EXPECT_THAT(Listed(), IsEmpty());
}

TEST_F(TransferListTest, MinimalAge_IsIncluded) {
  const auto transfer = list_.Add(1, Key("a"), 10, /*is_kept=*/false);
  clock_.Advance(absl::Seconds(5));
  EXPECT_THAT(Listed(absl::Seconds(5)), ElementsAre("a"));
  EXPECT_THAT(Listed(absl::Seconds(6)), IsEmpty());
}

TEST_F(TransferListTest, StepEnds_OnlyItsTransfersAreNotified) {
  const auto mine = list_.Add(1, Key("a"), 10, /*is_kept=*/false);
  const auto others = list_.Add(2, Key("b"), 10, /*is_kept=*/false);
  list_.EndStep(1);
  EXPECT_TRUE(mine->is_step_over.load());
  EXPECT_FALSE(others->is_step_over.load());
}

TEST_F(TransferListTest, ToATask_OnlyItsOwnAreNotified) {
  const auto near = list_.Add(1, Key("a", 1), 10, /*is_kept=*/false);
  const auto far = list_.Add(1, Key("b", 2), 10, /*is_kept=*/false);
  EXPECT_THAT(list_.To(*ParseTaskName("/job:worker/replica:0/task:2")), ElementsAre(far));
}

}  // namespace
}  // namespace ferry
