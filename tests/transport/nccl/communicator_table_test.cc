// SPDX-License-Identifier: Apache-2.0
// The life cycle of a device's communicators.
#include "transport/nccl/communicator_table.h"

#include <cstdint>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry {
namespace {

template <typename Action>
int CountOf(const BatchAgreementActions& actions) {
  int count = 0;
  for (const GrantAction& action : actions) count += std::holds_alternative<Action>(action) ? 1 : 0;
  return count;
}

class CommunicatorTableTest : public ::testing::Test {
 protected:
  static constexpr DeviceId kSelf{1};
  static constexpr CommunicatorName kPair{10, 1};
  static constexpr CommunicatorName kAll{20, 1};

  CommunicatorTableTest() {
    EXPECT_TRUE(table_.Open(kPair, {DeviceId(1), DeviceId(2)}).ok());
    EXPECT_TRUE(table_.Open(kAll, {DeviceId(0), DeviceId(1), DeviceId(2)}).ok());
  }

  CommunicatorTable table_{kSelf};
  BatchAgreementActions actions_;
};

TEST_F(CommunicatorTableTest, SmallestOneWithThePeerIsUsed) {
  EXPECT_EQ(table_.UsableWith(DeviceId(2)), kPair);
  EXPECT_EQ(table_.UsableWith(DeviceId(0)), kAll);
  EXPECT_FALSE(table_.UsableWith(DeviceId(3)).has_value());
}

// The peer that reported the break is not told of it again.
TEST_F(CommunicatorTableTest, Break_TellsTheOtherDevicesOnce) {
  const absl::Status why = absl::InternalError("NCCL failed");
  EXPECT_THAT(table_.Break({kAll}, why, {.told_by = DeviceId(2)}, actions_),
              ::testing::ElementsAre(kAll));
  EXPECT_EQ(CountOf<FlagCommunicator>(actions_), 1);
  EXPECT_EQ(CountOf<AbortCommunicator>(actions_), 1);
  EXPECT_EQ(CountOf<SendMessage>(actions_), 1);
  EXPECT_THAT(table_.Break({kAll}, why, {}, actions_), ::testing::IsEmpty());
  EXPECT_FALSE(table_.IsOpen(kAll));
  EXPECT_EQ(table_.EndOf(DeviceId(0), kAll).code(), absl::StatusCode::kAborted);
}

// A communicator must not be freed while another broken one has a kernel that may wait for it.
TEST_F(CommunicatorTableTest, BrokenOnes_AreFreedTogetherWhenNothingRuns) {
  table_.Break({kPair, kAll}, absl::InternalError("NCCL failed"), {}, actions_);
  actions_.clear();
  table_.Settle([](uint64_t id) { return id == kAll.id; }, actions_);
  EXPECT_EQ(CountOf<SendMessage>(actions_), 1);
  EXPECT_EQ(CountOf<FreeCommunicator>(actions_), 0);
  table_.Settle([](uint64_t) { return false; }, actions_);
  EXPECT_EQ(CountOf<SendMessage>(actions_), 3);
  EXPECT_EQ(CountOf<FreeCommunicator>(actions_), 2);
  EXPECT_EQ(table_.Open(kPair, {DeviceId(1), DeviceId(2)}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(table_.Open({kPair.id, 2}, {DeviceId(1), DeviceId(2)}).ok());
}

// BREAK may come before this device has opened its communicator.
TEST_F(CommunicatorTableTest, GenerationThatEndedBeforeItWasOpened_NeverOpens) {
  const CommunicatorName later{30, 4};
  EXPECT_TRUE(table_.EndGenerationsUpTo(later, absl::InternalError("NCCL failed")));
  EXPECT_FALSE(table_.EndGenerationsUpTo(later, absl::InternalError("NCCL failed")));
  EXPECT_TRUE(table_.IsOver(later));
  EXPECT_EQ(table_.Open(later, {DeviceId(1), DeviceId(2)}).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ferry
