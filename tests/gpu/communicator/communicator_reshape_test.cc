// SPDX-License-Identifier: Apache-2.0
// Communicators that are made of others, on the fake driver: by the members that are left, and with
// new ones.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/thread.h"
#include "tests/gpu/communicator/fake_driver_ranks.h"

namespace ferry {
namespace {

using testing::HasSubstr;

using CommunicatorReshapeTest = FakeDriverRanks;

// Making it ends with a warm-up: all of its ranks have exchanged data.
TEST_F(CommunicatorReshapeTest, SurvivorsOfADeadMemberShrink) {
  Made all = Make({0, 1, 2});
  ExpectWay(all, 3, CommunicatorWay::kCreate);
  // They wait for the dead one, and for each other.
  Hang(*all.communicators[0]);
  Hang(*all.communicators[2]);
  gone_ = {1};
  const Made some = Make({0, 2}, Of(all.communicators, {0, 2}));
  ExpectWay(some, 2, CommunicatorWay::kShrink);
  EXPECT_EQ(all.communicators[0]->get(), nullptr);
  EXPECT_EQ(some.communicators.at(2)->rank(), 1);
}

// Its operation with a survivor runs, and reads what the end of the origin frees.
TEST_F(CommunicatorReshapeTest, ExcludedMemberThatIsAlive_StopsFirst) {
  Made all = Make({0, 1, 2});
  NcclCommunicator& excluded = *all.communicators[1];
  Hang(excluded);
  const Thread ending("excluded", [&excluded] {
    while (excluded.Check().ok()) absl::SleepFor(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(50));
    excluded.Abort(absl::AbortedError("another rank has left it"));
  });
  ExpectWay(Make({0, 2}, Of(all.communicators, {0, 2})), 2, CommunicatorWay::kShrink);
}

TEST_F(CommunicatorReshapeTest, ShrunkOneShrinksAgain) {
  Made all = Make({0, 1, 2, 3});
  gone_ = {0};
  Made some = Make({1, 2, 3}, Of(all.communicators, {1, 2, 3}));
  ExpectWay(some, 3, CommunicatorWay::kShrink);
  gone_ = {0, 2};
  ExpectWay(Make({1, 3}, Of(some.communicators, {1, 3})), 2, CommunicatorWay::kShrink);
}

TEST_F(CommunicatorReshapeTest, NewMembersJoin) {
  Made two = Make({0, 1});
  Held origins = two.communicators;
  origins[2] = nullptr;
  origins[3] = nullptr;
  const Made four = Make({0, 1, 2, 3}, origins);
  ExpectWay(four, 4, CommunicatorWay::kGrow);
  EXPECT_EQ(two.communicators[1]->get(), nullptr);
}

TEST_F(CommunicatorReshapeTest, OneOfASingleMemberGrows) {
  Made one = Make({0});
  Held origins = one.communicators;
  origins[1] = nullptr;
  ExpectWay(Make({0, 1}, origins), 2, CommunicatorWay::kGrow);
}

TEST_F(CommunicatorReshapeTest, RankWithoutAnOrigin_AllCreateIt) {
  Made all = Make({0, 1, 2});
  ExpectWay(Make({0, 2}, Of(all.communicators, {0})), 2, CommunicatorWay::kCreate);
}

// Its operations would never end.
TEST_F(CommunicatorReshapeTest, OriginWithWorkInFlight_DoesNotGrow) {
  Made two = Make({0, 1});
  Hang(*two.communicators[1]);
  Held origins = two.communicators;
  origins[2] = nullptr;
  ExpectWay(Make({0, 1, 2}, origins), 3, CommunicatorWay::kCreate);
}

TEST_F(CommunicatorReshapeTest, ShrinkFailsOnOneRank_AllCreateIt) {
  Made all = Make({0, 1, 2});
  gone_ = {1};
  cuda::FailNext("ncclCommShrink", nccl::kInternalError);
  ExpectWay(Make({0, 2}, Of(all.communicators, {0, 2})), 2, CommunicatorWay::kCreate);
}

TEST_F(CommunicatorReshapeTest, GrowFailsOnOneRank_AllCreateIt) {
  Made two = Make({0, 1});
  Held origins = two.communicators;
  origins[2] = nullptr;
  cuda::FailNext("ncclCommGrow", nccl::kSystemError);
  ExpectWay(Make({0, 1, 2}, origins), 3, CommunicatorWay::kCreate);
}

TEST_F(CommunicatorReshapeTest, OriginThatCannotBeRevoked_IsAbortedAndCreatedAnew) {
  Made all = Make({0, 1, 2});
  gone_ = {1};
  cuda::FailNext("ncclCommRevoke", nccl::kInvalidUsage);
  ExpectWay(Make({0, 2}, Of(all.communicators, {0, 2})), 2, CommunicatorWay::kCreate);
}

TEST_F(CommunicatorReshapeTest, MemberThatNeverCalls_IsNamed) {
  Made all = Make({0, 1, 2, 3});
  Made some = Make({0, 1, 2}, Of(all.communicators, {0, 1}), {0, 1}, absl::Seconds(1));
  ASSERT_EQ(some.errors.size(), 2u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(some.errors[0])) << some.errors[0];
  // The one whose time is over first: the other goes on to the next generation for a moment.
  EXPECT_THAT(absl::StrCat(some.errors[0].message(), some.errors[1].message()),
              HasSubstr("1 of 3: rank 2 (device 2) has not come"));
  EXPECT_EQ(all.communicators[0]->get(), nullptr);
}

// It has said that it takes part, and then hangs in the call, as if it had died.
TEST_F(CommunicatorReshapeTest, FurtherMemberDiesWhileTheSurvivorsShrink) {
  Made all = Make({0, 1, 2, 3});
  cuda::FailNext("ncclCommShrink", -1);
  on_ended_ = [](size_t count) {
    if (count < 2) return;
    reinterpret_cast<void (*)()>(cuda::StrictSymbol("strict_cuda_clear_faults"))();
  };
  const Made some = Make({0, 1, 2}, Of(all.communicators, {0, 1, 2}), {}, absl::Milliseconds(500));
  EXPECT_EQ(some.errors.size(), 3u);
  for (const auto& [device, error] : some.errors) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(error)) << error;
  }
  // Those that are left go on.
  ExpectWay(Make({0, 1}), 2, CommunicatorWay::kCreate);
}

}  // namespace
}  // namespace ferry
