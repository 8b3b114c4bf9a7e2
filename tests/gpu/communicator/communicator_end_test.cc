// SPDX-License-Identifier: Apache-2.0
// Every way in which a communicator ends.
#include "gpu/communicator/communicator_end.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

namespace ferry {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using State = CommunicatorEnd::State;

class FakeCalls final : public CommunicatorEnd::Calls {
 public:
  absl::Status Finalize() override { return Called("finalize", finalized); }
  bool CanRevoke() const override { return can_revoke; }
  absl::Status Revoke() override { return Called("revoke", revoked); }
  absl::StatusOr<bool> IsSettled() override { return settled; }
  absl::Status Destroy() override { return Called("destroy", destroyed); }
  absl::Status Abort() override { return Called("abort", aborted); }
  void ReportStopped() override {
    if (!std::exchange(has_reported, true)) called.push_back("report");
  }
  bool HaveOthersStopped() override { return others_have_stopped; }
  std::string DescribeOthers() override { return "rank 1 (device 5)"; }

  absl::Status Called(const std::string& name, const absl::Status& result) {
    called.push_back(name);
    return result;
  }

  bool can_revoke = true;
  absl::Status finalized;
  absl::Status revoked;
  absl::Status destroyed;
  absl::Status aborted;
  absl::StatusOr<bool> settled = false;
  bool others_have_stopped = true;
  bool has_reported = false;
  std::vector<std::string> called;
};

class CommunicatorEndTest : public testing::Test {
 protected:
  FakeCalls calls_;
  FakeClock clock_;
  const CommunicatorEnd::Options options_;
  CommunicatorEnd end_{calls_, clock_, options_};
};

TEST_F(CommunicatorEndTest, IdleOneIsFinalizedAndDestroyed) {
  EXPECT_EQ(end_.state(), State::kOpen);
  end_.Begin(/*is_idle=*/true);
  EXPECT_EQ(end_.state(), State::kFinalizing);
  end_.Poll();
  EXPECT_TRUE(end_.is_waiting());
  calls_.settled = true;
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kDestroying);
  EXPECT_FALSE(end_.is_waiting());
  // Only reports: others that abort wait for that.
  calls_.others_have_stopped = false;
  end_.AwaitOthers();
  EXPECT_FALSE(end_.is_waiting());
  end_.Free();
  EXPECT_EQ(end_.state(), State::kEnded);
  EXPECT_TRUE(end_.problem().ok()) << end_.problem();
  EXPECT_THAT(calls_.called, ElementsAre("finalize", "report", "destroy"));
}

TEST_F(CommunicatorEndTest, OneWithWorkInFlightIsRevokedAndAborted) {
  end_.Begin(/*is_idle=*/false);
  EXPECT_EQ(end_.state(), State::kRevoking);
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kRevoking);
  calls_.settled = true;
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kStopped);
  EXPECT_FALSE(end_.is_waiting());
  end_.AwaitOthers();
  EXPECT_EQ(end_.state(), State::kAborting);
  end_.Free();
  EXPECT_EQ(end_.state(), State::kEnded);
  EXPECT_TRUE(end_.problem().ok()) << end_.problem();
  EXPECT_THAT(calls_.called, ElementsAre("revoke", "report", "abort"));
}

// The abort frees memory that kernels of the others read.
TEST_F(CommunicatorEndTest, StoppedOne_IsFreedWhenTheOthersHaveStopped) {
  calls_.settled = true;
  calls_.others_have_stopped = false;
  end_.Begin(false);
  end_.Poll();
  end_.AwaitOthers();
  EXPECT_THAT(calls_.called, ElementsAre("revoke", "report"));
  clock_.Advance(options_.others_timeout - absl::Milliseconds(1));
  end_.Poll();
  EXPECT_TRUE(end_.is_waiting());
  calls_.others_have_stopped = true;
  end_.Poll();
  EXPECT_FALSE(end_.is_waiting());
  end_.Free();
  EXPECT_TRUE(end_.problem().ok()) << end_.problem();
  EXPECT_THAT(calls_.called, ElementsAre("revoke", "report", "abort"));
}

TEST_F(CommunicatorEndTest, OthersThatDoNotStop_AreNotWaitedForForever) {
  calls_.settled = true;
  calls_.others_have_stopped = false;
  end_.Begin(false);
  end_.Poll();
  end_.AwaitOthers();
  clock_.Advance(options_.others_timeout);
  end_.Poll();
  EXPECT_FALSE(end_.is_waiting());
  end_.Free();
  EXPECT_EQ(end_.state(), State::kEnded);
  EXPECT_TRUE(absl::IsDeadlineExceeded(end_.problem()));
  EXPECT_THAT(end_.problem().message(), HasSubstr("waited 2s for rank 1 (device 5) to stop"));
}

// Others may have initialized it, and wait for this rank.
TEST_F(CommunicatorEndTest, UninitializedOne_IsFreedWhenTheOthersHaveStopped) {
  calls_.others_have_stopped = false;
  end_.BeginUninitialized();
  EXPECT_FALSE(end_.is_waiting());
  end_.AwaitOthers();
  EXPECT_TRUE(end_.is_waiting());
  calls_.others_have_stopped = true;
  end_.Poll();
  end_.Free();
  EXPECT_THAT(calls_.called, ElementsAre("report", "abort"));
}

// A communicator that another one is made of.
TEST_F(CommunicatorEndTest, StoppedOneMayBeFreedWithoutWaitingForOthers) {
  calls_.settled = true;
  end_.Begin(false);
  end_.Poll();
  end_.Free();
  EXPECT_EQ(end_.state(), State::kEnded);
  EXPECT_THAT(calls_.called, ElementsAre("revoke", "abort", "report"));
}

TEST_F(CommunicatorEndTest, WithoutRevokeOneWithWorkInFlightIsAborted) {
  calls_.can_revoke = false;
  end_.Begin(/*is_idle=*/false);
  EXPECT_EQ(end_.state(), State::kAborting);
  // It has not stopped, and only the abort stops it.
  calls_.others_have_stopped = false;
  end_.AwaitOthers();
  EXPECT_FALSE(end_.is_waiting());
  end_.Free();
  EXPECT_THAT(calls_.called, ElementsAre("abort", "report"));
}

// NCCL refuses to revoke what is being finalized.
TEST_F(CommunicatorEndTest, FinalizeThatDoesNotComplete_IsAborted) {
  end_.Begin(true);
  clock_.Advance(options_.finalize_timeout - absl::Milliseconds(1));
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kFinalizing);
  clock_.Advance(absl::Milliseconds(1));
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kAborting);
  end_.Free();
  EXPECT_TRUE(absl::IsDeadlineExceeded(end_.problem()));
  EXPECT_THAT(end_.problem().message(), HasSubstr("ncclCommFinalize has not completed within 5s"));
  EXPECT_THAT(calls_.called, ElementsAre("finalize", "abort", "report"));
}

TEST_F(CommunicatorEndTest, CompletionAtTheDeadlineCounts) {
  end_.Begin(true);
  clock_.Advance(options_.finalize_timeout);
  calls_.settled = true;
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kDestroying);
}

TEST_F(CommunicatorEndTest, ErrorWhileFinalizing_IsAborted) {
  end_.Begin(true);
  calls_.settled = absl::UnavailableError("a remote error");
  end_.Poll();
  end_.Free();
  EXPECT_TRUE(absl::IsUnavailable(end_.problem()));
  EXPECT_THAT(calls_.called, ElementsAre("finalize", "abort", "report"));
}

TEST_F(CommunicatorEndTest, FinalizeIsRefused_IsRevoked) {
  calls_.finalized = absl::InternalError("it has an error");
  end_.Begin(true);
  EXPECT_EQ(end_.state(), State::kRevoking);
  calls_.settled = true;
  end_.Poll();
  end_.Free();
  EXPECT_EQ(end_.problem().message(), "it has an error");
  EXPECT_THAT(calls_.called, ElementsAre("finalize", "revoke", "abort", "report"));
}

TEST_F(CommunicatorEndTest, FinalizeIsRefusedWithoutRevoke_IsAborted) {
  calls_.can_revoke = false;
  calls_.finalized = absl::InternalError("it has an error");
  end_.Begin(true);
  end_.Free();
  EXPECT_THAT(calls_.called, ElementsAre("finalize", "abort", "report"));
}

TEST_F(CommunicatorEndTest, RevokeIsRefused_IsAborted) {
  calls_.revoked = absl::InvalidArgumentError("no");
  end_.Begin(false);
  EXPECT_EQ(end_.state(), State::kAborting);
  end_.Free();
  EXPECT_EQ(end_.problem().message(), "no");
  EXPECT_THAT(calls_.called, ElementsAre("revoke", "abort", "report"));
}

TEST_F(CommunicatorEndTest, RevokeThatDoesNotComplete_IsAborted) {
  end_.Begin(false);
  clock_.Advance(options_.revoke_timeout);
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kAborting);
  end_.Free();
  EXPECT_THAT(end_.problem().message(), HasSubstr("ncclCommRevoke has not completed within 2s"));
}

TEST_F(CommunicatorEndTest, ErrorWhileRevoking_IsAborted) {
  end_.Begin(false);
  calls_.settled = absl::UnavailableError("a remote error");
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kAborting);
}

TEST_F(CommunicatorEndTest, DestroyFails_IsAborted) {
  calls_.destroyed = absl::InternalError("not now");
  calls_.settled = true;
  end_.Begin(true);
  end_.Poll();
  end_.Free();
  EXPECT_EQ(end_.state(), State::kEnded);
  EXPECT_EQ(end_.problem().message(), "not now");
  EXPECT_THAT(calls_.called, ElementsAre("finalize", "destroy", "abort", "report"));
}

TEST_F(CommunicatorEndTest, AbortFails_ItHasEndedAllTheSame) {
  calls_.can_revoke = false;
  calls_.aborted = absl::InternalError("no abort");
  end_.Begin(false);
  end_.Free();
  EXPECT_EQ(end_.state(), State::kEnded);
  EXPECT_EQ(end_.problem().message(), "no abort");
}

TEST_F(CommunicatorEndTest, GivenUpWhenItCouldBeDestroyed_IsAborted) {
  calls_.settled = true;
  end_.Begin(true);
  end_.Poll();
  ASSERT_EQ(end_.state(), State::kDestroying);
  end_.GiveUp(absl::DeadlineExceededError("the GPUs are never quiet"));
  end_.Free();
  EXPECT_EQ(end_.problem().message(), "the GPUs are never quiet");
  EXPECT_THAT(calls_.called, ElementsAre("finalize", "abort", "report"));
}

TEST_F(CommunicatorEndTest, GivenUpWhileItIsFinalized_IsAborted) {
  end_.Begin(true);
  end_.GiveUp(absl::CancelledError("leaving"));
  EXPECT_FALSE(end_.is_waiting());
  // Late.
  calls_.settled = true;
  end_.Poll();
  EXPECT_EQ(end_.state(), State::kAborting);
}

TEST_F(CommunicatorEndTest, TheFirstProblemIsKept) {
  end_.Begin(true);
  calls_.settled = absl::UnavailableError("a remote error");
  calls_.aborted = absl::InternalError("no abort");
  end_.Poll();
  end_.Free();
  EXPECT_EQ(end_.problem().message(), "a remote error");
}

}  // namespace
}  // namespace ferry
