// SPDX-License-Identifier: Apache-2.0
// When a GPU's transfers are paused, and when they no longer wait for the end of a turn.
#include "transport/nccl/transfer_pause.h"

#include <cstdint>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

TEST(TransferPause, EitherReasonPauses) {
  FakeClock clock;
  TransferPause pause(3);
  EXPECT_FALSE(pause.is_paused());
  pause.SetQuietWanted(true);
  ASSERT_TRUE(pause.BeginTurn(clock.Now()).has_value());
  pause.SetQuietWanted(false);
  EXPECT_TRUE(pause.is_paused());
  EXPECT_TRUE(pause.is_turn_wanted());
  pause.EndTurn();
  EXPECT_FALSE(pause.is_paused());
}

// NcclArbiter reports a turn that is under way more than once.
TEST(TransferPause, TurnUnderWay_DoesNotBeginAgain) {
  FakeClock clock;
  TransferPause pause(3);
  const std::optional<uint64_t> turn = pause.BeginTurn(clock.Now());
  ASSERT_TRUE(turn.has_value());
  clock.Advance(absl::Seconds(2));
  EXPECT_FALSE(pause.BeginTurn(clock.Now()).has_value());
  ASSERT_TRUE(pause.ExpireTurn(*turn));
  const absl::Status refusal = pause.Refusal(clock.Now());
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refusal.message(), HasSubstr("on gpu:3 for 2s"));
  pause.EndTurn();
  EXPECT_TRUE(pause.Refusal(clock.Now()).ok());
}

// The timer of a turn fires when the next one has just begun.
TEST(TransferPause, TimeoutOfAnEarlierTurn_HasNoEffect) {
  FakeClock clock;
  TransferPause pause(3);
  const std::optional<uint64_t> first = pause.BeginTurn(clock.Now());
  ASSERT_TRUE(first.has_value());
  pause.EndTurn();
  EXPECT_FALSE(pause.ExpireTurn(*first));
  ASSERT_TRUE(pause.BeginTurn(clock.Now()).has_value());
  EXPECT_FALSE(pause.ExpireTurn(*first));
  EXPECT_TRUE(pause.Refusal(clock.Now()).ok());
}

}  // namespace
}  // namespace ferry
