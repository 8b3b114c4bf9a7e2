// SPDX-License-Identifier: Apache-2.0
// When an agent connects again, and when its coordinator counts as lost.
#include "coord/client/reconnect_policy.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::coord {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

ReconnectPolicy MakePolicy(absl::Duration reconnect_timeout = absl::ZeroDuration()) {
  return ReconnectPolicy({.coordinator = "host:1",
                          .connect_timeout = absl::Seconds(60),
                          .reconnect_timeout = reconnect_timeout},
                         kStart);
}

TEST(ReconnectPolicy, FirstAttemptIsAtOnce) { EXPECT_EQ(MakePolicy().next_attempt(), kStart); }

TEST(ReconnectPolicy, PausesBetweenAttemptsDoubleUpToTwoSeconds) {
  ReconnectPolicy policy = MakePolicy();
  absl::Duration most = absl::Milliseconds(20);
  for (int i = 0; i < 20; ++i) {
    policy.NoteEnd(absl::UnavailableError("refused"), kStart);
    EXPECT_GE(policy.next_attempt() - kStart, most / 2) << i;
    EXPECT_LE(policy.next_attempt() - kStart, most) << i;
    most = std::min(most * 2, absl::Seconds(2));
  }
}

TEST(ReconnectPolicy, Welcome_MakesTheNextPauseShort) {
  ReconnectPolicy policy = MakePolicy();
  for (int i = 0; i < 20; ++i) policy.NoteEnd(absl::UnavailableError("refused"), kStart);
  policy.NoteWelcome(absl::Seconds(100));
  policy.NoteEnd(absl::UnavailableError("broken"), kStart);
  EXPECT_LE(policy.next_attempt() - kStart, absl::Milliseconds(20));
}

TEST(ReconnectPolicy, CoordinatorThatWasNeverReached_IsLostAfterTheConnectTimeout) {
  const ReconnectPolicy policy = MakePolicy();
  EXPECT_EQ(policy.LostAt(), kStart + absl::Seconds(60));
  const absl::Status error = policy.LostError(policy.LostAt());
  EXPECT_TRUE(absl::IsDeadlineExceeded(error)) << error;
  EXPECT_THAT(error.message(), HasSubstr("host:1 has been out of reach for 60s"));
}

TEST(ReconnectPolicy, CoordinatorThatWasReached_IsLostAfterItsHeartbeatTimeout) {
  ReconnectPolicy policy = MakePolicy();
  policy.NoteWelcome(absl::Seconds(100));
  policy.NoteContact(kStart + absl::Seconds(5));
  EXPECT_EQ(policy.LostAt(), kStart + absl::Seconds(105));
  EXPECT_TRUE(absl::IsUnavailable(policy.LostError(policy.LostAt())));
}

TEST(ReconnectPolicy, OwnLostTimeout_TakesPrecedence) {
  ReconnectPolicy policy = MakePolicy(absl::Seconds(7));
  policy.NoteWelcome(absl::Seconds(100));
  EXPECT_EQ(policy.LostAt(), kStart + absl::Seconds(7));
}

TEST(ReconnectPolicy, WhileJoining_TheConnectTimeoutLimitsTheAbsence) {
  ReconnectPolicy policy = MakePolicy();
  policy.NoteWelcome(absl::Seconds(100));
  policy.SetJoining(true);
  EXPECT_EQ(policy.LostAt(), kStart + absl::Seconds(60));
  const absl::Status error = policy.LostError(policy.LostAt());
  EXPECT_TRUE(absl::IsDeadlineExceeded(error)) << error;
  EXPECT_THAT(error.message(), HasSubstr("for the other nodes to join"));
  policy.SetJoining(false);
  EXPECT_EQ(policy.LostAt(), kStart + absl::Seconds(100));
}

TEST(ReconnectPolicy, AfterTheJobHasFailed_TheCoordinatorIsLostSoonWithTheJobsError) {
  ReconnectPolicy policy = MakePolicy();
  policy.NoteWelcome(absl::Seconds(100));
  EXPECT_TRUE(policy.NoteJobError(absl::AbortedError("node 1 died")));
  EXPECT_FALSE(policy.NoteJobError(absl::AbortedError("node 2 died")));
  EXPECT_EQ(policy.LostAt(), kStart + absl::Seconds(3));
  EXPECT_EQ(policy.LostError(policy.LostAt()), absl::AbortedError("node 1 died"));
}

}  // namespace
}  // namespace ferry::coord
