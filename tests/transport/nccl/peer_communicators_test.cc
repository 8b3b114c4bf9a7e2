// SPDX-License-Identifier: Apache-2.0
// Which communicators with peers a GPU creates, keeps and evicts.
#include "transport/nccl/peer_communicators.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"

namespace ferry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PeerCommunicatorsTest : public ::testing::Test {
 protected:
  static constexpr DeviceId kSelf{1};
  static constexpr DeviceId kFirst{0};
  static constexpr DeviceId kSecond{2};

  PeerCommunicatorsTest() {
    for (const DeviceId peer : {kFirst, kSecond}) {
      peers_.SetPeer({peer, 1000, "gpu:0 of node " + std::to_string(peer.value())});
    }
  }

  static NcclTransportOptions RoomForOne() {
    NcclTransportOptions options;
    options.memory_bytes = options.communicator_bytes() + 1;
    return options;
  }
  PeerCommunicators::Creation Start(DeviceId peer) {
    return peers_.StartCreating(peer, clock_.Now()).value().value();
  }

  FakeClock clock_;
  const NcclTransportOptions options_ = RoomForOne();
  PeerCommunicators peers_{kSelf, 1000, options_};
};

TEST_F(PeerCommunicatorsTest, TwoRequests_CreateOneCommunicator) {
  EXPECT_EQ(Start(kFirst).rank, 1);
  const auto again = peers_.StartCreating(kFirst, clock_.Now());
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->has_value());
}

TEST_F(PeerCommunicatorsTest, MemoryForOne_EvictsTheOneThatIsNotInUse) {
  EXPECT_THAT(Start(kFirst).evicted, IsEmpty());
  const CommunicatorName name{7, 1};
  peers_.SetOpen(kFirst, {.name = name, .communicator = nullptr, .warmth = nullptr});
  EXPECT_EQ(peers_.PeerOf(name), kFirst);
  EXPECT_THAT(Start(kSecond).evicted, ElementsAre(name));
}

TEST_F(PeerCommunicatorsTest, MemoryForOneThatIsInUse_NoneIsCreated) {
  Start(kFirst);
  peers_.AddUser(kFirst);
  peers_.SetOpen(kFirst, {.name = {7, 1}, .communicator = nullptr, .warmth = nullptr});
  EXPECT_EQ(peers_.StartCreating(kSecond, clock_.Now()).status().code(),
            absl::StatusCode::kResourceExhausted);
  peers_.DropUser(kFirst);
  EXPECT_THAT(Start(kSecond).evicted, ElementsAre(CommunicatorName{7, 1}));
}

TEST_F(PeerCommunicatorsTest, FailedCreation_IsRefusedUntilItsRetryIsDue) {
  Start(kFirst);
  peers_.SetNotCreated(kFirst);
  peers_.Fail(kFirst, absl::UnavailableError("no answer"), clock_.Now()).IgnoreError();
  EXPECT_THAT(peers_.Refusal(kFirst, clock_.Now()).message(),
              HasSubstr("no communicator with gpu:0 of node 0: no answer; tried again in 1s"));
  EXPECT_EQ(peers_.StartCreating(kFirst, clock_.Now()).status().message(), "no answer");
  clock_.Advance(RetryBackoff::kFirst);
  EXPECT_TRUE(peers_.Refusal(kFirst, clock_.Now()).ok());
  Start(kFirst);
}

// The flag is shared with the thread that creates it.
TEST_F(PeerCommunicatorsTest, PeerFailsDuringCreation_ItIsGivenUp) {
  const PeerCommunicators::Creation creation = Start(kFirst);
  EXPECT_FALSE(peers_.WasGivenUp(kFirst));
  peers_.GiveUp(kFirst);
  EXPECT_TRUE(creation.give_up->load());
  EXPECT_TRUE(peers_.WasGivenUp(kFirst));
}

// A process that leaves closes its connections before its kernels have left.
TEST_F(PeerCommunicatorsTest, ProcessThatHasEnded_CountsAsGoneALittleLater) {
  const CommunicatorMember member = {kFirst.value(), 1000};
  EXPECT_FALSE(peers_.IsGone(member, clock_.Now()));
  peers_.SetGone({kFirst, 1000, ""}, clock_.Now());
  EXPECT_FALSE(peers_.IsGone(member, clock_.Now()));
  clock_.Advance(absl::Milliseconds(200));
  EXPECT_TRUE(peers_.IsGone(member, clock_.Now()));
  EXPECT_FALSE(peers_.IsGone({kFirst.value(), 1001}, clock_.Now())) << "a new process of the peer";
  EXPECT_FALSE(peers_.IsGone({kSecond.value(), 1000}, clock_.Now()));
  EXPECT_FALSE(peers_.IsGone({17, 1000}, clock_.Now()));
}

// Memory that it may still read is not freed before it has stopped.
TEST_F(PeerCommunicatorsTest, ProcessThatHasConnectedAgain_IsNotGone) {
  peers_.SetGone({kFirst, 1000, ""}, clock_.Now());
  clock_.Advance(absl::Seconds(1));
  peers_.SetBack({kFirst, 1000, ""});
  EXPECT_FALSE(peers_.IsGone({kFirst.value(), 1000}, clock_.Now()));
}

// Its successor is known when its own connection is noticed to have failed.
TEST_F(PeerCommunicatorsTest, ReplacedProcess_IsGone_AndItsSuccessorIsNot) {
  peers_.SetPeer({kFirst, 1001, "its successor"});
  peers_.SetBack({kFirst, 1001, ""});
  peers_.SetGone({kFirst, 1000, ""}, clock_.Now());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(peers_.IsGone({kFirst.value(), 1000}, clock_.Now()));
  EXPECT_FALSE(peers_.IsGone({kFirst.value(), 1001}, clock_.Now()));
}

}  // namespace
}  // namespace ferry
