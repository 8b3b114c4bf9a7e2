// SPDX-License-Identifier: Apache-2.0
// The calls of a lighthouse: who gets which quorum, when calls end, ids, limits.
#include "coord/lighthouse/lighthouse.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/coord/lighthouse/lighthouse_world.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

LighthouseOptions OfMin(size_t replicas) {
  LighthouseOptions options;
  options.min_replicas = replicas;
  return options;
}

TEST(LighthouseJoin, LastOfTheMinimumJoins_AllGetTheSameQuorumAtOnce) {
  LighthouseWorld world(OfMin(3));
  const QuorumCall c = world.Join(Member("c", 3));
  const QuorumCall a = world.Join(Member("a", 1));
  EXPECT_FALSE(a.done() || c.done());
  const QuorumCall b = world.Join(Member("b", 2));
  for (const QuorumCall& call : {a, b, c}) {
    EXPECT_EQ(call.members(), "a b c");
    EXPECT_EQ(call.id(), 1);
  }
  ASSERT_TRUE(a.done());
  EXPECT_EQ(a.quorum().members[2].step, 3);
  EXPECT_EQ(a.quorum().members[2].encoded, "bytes of c");
  EXPECT_EQ(a.quorum().created, world.clock.Now());
  EXPECT_EQ(world.lighthouse.wait_count(), 0u);
}

// Manager by manager, step by step: connections are made anew when the id changes.
TEST(LighthouseIds, SameMembers_KeepTheId) {
  LighthouseWorld world(OfMin(2));
  world.Form({"a", "b"});
  const QuorumCall b = world.Join(Member("b", 1));
  const QuorumCall a = world.Join(Member("a", 1));
  EXPECT_EQ(a.id(), 1);
  EXPECT_EQ(b.members(), "a b");
  EXPECT_EQ(b.quorum().members[0].step, 1);
}

TEST(LighthouseIds, MemberGoesOrComes_IdGrows) {
  LighthouseWorld world;
  world.Form({"a", "b"});
  const int64_t first = 1;
  world.Pass(absl::Seconds(6), {"a"});
  const QuorumCall alone = world.Join("a");
  EXPECT_EQ(alone.members(), "a");
  EXPECT_EQ(alone.id(), first + 1);
  EXPECT_TRUE(world.Beat("b").ok());
  const QuorumCall b = world.Join("b");
  const QuorumCall a = world.Join("a");
  EXPECT_EQ(a.members(), "a b");
  EXPECT_EQ(b.id(), first + 2);
}

// torchft's rule: only ids of replicas count, for a replica that restarts has another one. If it
// has not, those that lost the connection to it report failed commits.
TEST(LighthouseIds, MemberRestartsAtAnotherAddress_KeepsTheIdAndIsReturnedAnew) {
  LighthouseWorld world(OfMin(2));
  world.Form({"a", "b"});
  const QuorumCall a = world.Join("a");
  QuorumMember moved = Member("b");
  moved.address = "http://elsewhere";
  moved.encoded = "moved";
  const QuorumCall b = world.Join(moved);
  EXPECT_EQ(a.id(), 1);
  ASSERT_TRUE(a.done() && b.done());
  EXPECT_EQ(a.quorum().members[1].address, "http://elsewhere");
  EXPECT_EQ(a.quorum().members[1].encoded, "moved");
}

TEST(LighthouseIds, MemberReportsFailedCommits_IdGrows) {
  LighthouseWorld world(OfMin(2));
  world.Form({"a", "b"});
  for (const int64_t expected : {2, 3}) {
    const QuorumCall a = world.Join("a");
    QuorumMember failed = Member("b");
    failed.commit_failures = 2;
    world.Join(failed);
    EXPECT_EQ(a.id(), expected);
  }
  const QuorumCall a = world.Join("a");
  world.Join("b");
  EXPECT_EQ(a.id(), 3);
}

// One that was left out is not in the quorum whose commit has failed.
TEST(LighthouseIds, ReplicaOutsideTheQuorumReportsFailedCommits_KeepsTheId) {
  LighthouseWorld world;
  world.Form({"a"});
  EXPECT_TRUE(world.Beat("c").ok());
  QuorumMember failed = Member("c");
  failed.commit_failures = 1;
  const QuorumCall c = world.Join(failed);
  EXPECT_EQ(world.Join(ShrinkOnly("a")).id(), 1);
  EXPECT_FALSE(c.done());
}

TEST(LighthouseIds, BeginAsTold) {
  LighthouseOptions options;
  options.first_quorum_id = 1'764'000'000'000;
  LighthouseWorld world(options);
  EXPECT_EQ(world.Join("a").id(), 1'764'000'000'000);
}

TEST(LighthouseJoin, StragglerDies_QuorumWithoutItAfterTheHeartbeatTimeout) {
  LighthouseWorld world;
  world.Form({"a", "b", "c"});
  EXPECT_TRUE(world.Beat("c").ok());
  const QuorumCall a = world.Join("a");
  const QuorumCall b = world.Join("b");
  world.Pass(absl::Milliseconds(4900), {"a", "b"});
  EXPECT_FALSE(a.done());
  world.Pass(absl::Milliseconds(100), {"a", "b"});
  EXPECT_EQ(a.members(), "a b");
  EXPECT_EQ(b.members(), "a b");
}

TEST(LighthouseJoin, StragglerLives_QuorumWithoutItAfterTheJoinTimeout) {
  LighthouseWorld world;
  world.Form({"a", "b", "c"});
  const QuorumCall a = world.Join("a");
  world.Pass(absl::Seconds(30), {"a", "b", "c"});
  const QuorumCall b = world.Join("b");
  // Since the first of them.
  world.Pass(absl::Milliseconds(29'900), {"a", "b", "c"});
  EXPECT_FALSE(b.done());
  world.Pass(absl::Milliseconds(100), {"a", "b", "c"});
  EXPECT_EQ(a.members(), "a b");
  EXPECT_EQ(b.members(), "a b");
}

TEST(LighthouseJoin, JoinedReplicaSendsNoHeartbeats_IsNoMemberAndWaitsOn) {
  LighthouseWorld world(OfMin(2));
  const QuorumCall a = world.Join("a");
  world.Pass(absl::Seconds(5), {"b", "c"});
  const QuorumCall b = world.Join("b");
  const QuorumCall c = world.Join("c");
  EXPECT_EQ(b.members(), "b c");
  EXPECT_FALSE(a.done());
  // Its heartbeats come again: it is in the next one.
  EXPECT_TRUE(world.Beat("a").ok());
  world.Join("b");
  EXPECT_EQ(world.Join("c").members(), "a b c");
  EXPECT_EQ(a.members(), "a b c");
}

TEST(LighthouseJoin, NewcomerWhileTheOthersShrink_IsInALaterQuorum) {
  LighthouseWorld world(OfMin(2));
  world.Form({"a", "b"});
  const QuorumCall newcomer = world.Join("c");
  EXPECT_FALSE(newcomer.done());
  const QuorumCall a = world.Join(ShrinkOnly("a"));
  EXPECT_EQ(world.Join("b").members(), "a b");
  EXPECT_EQ(a.id(), 1);
  EXPECT_FALSE(newcomer.done());
  world.Join("a");
  EXPECT_EQ(world.Join("b").members(), "a b c");
  EXPECT_EQ(newcomer.id(), 2);
}

// It has joined again then: the others of the next quorum have as long as for any other.
TEST(LighthouseJoin, LeftOutOfAQuorum_JoinTimeoutBeginsAnew) {
  LighthouseWorld world;
  world.Form({"a", "b"});
  const QuorumCall c = world.Join("c");
  world.Pass(absl::Seconds(50), {"a", "b", "c", "d"});
  world.Join(ShrinkOnly("a"));
  world.Join("b");
  world.Join("a");
  EXPECT_FALSE(c.done());
  EXPECT_TRUE(world.Beat("d").ok());
  // a and c of four, then with e of five: not all of the previous quorum.
  const QuorumCall e = world.Join("e");
  world.Pass(absl::Seconds(20), {"a", "b", "c", "d", "e"});
  EXPECT_FALSE(e.done());
  world.Pass(absl::Seconds(40), {"a", "b", "c", "d", "e"});
  EXPECT_EQ(c.members(), "a c e");
}

TEST(LighthouseJoin, SameReplicaTwice_LatestCallCountsAndBothGetTheQuorum) {
  LighthouseWorld world(OfMin(2));
  const QuorumCall first = world.Join(Member("a", 1));
  const QuorumCall second = world.Join(Member("a", 2));
  EXPECT_FALSE(second.done());
  const QuorumCall b = world.Join("b");
  EXPECT_EQ(first.members(), "a b");
  EXPECT_EQ(second.members(), "a b");
  ASSERT_TRUE(b.done());
  EXPECT_EQ(b.quorum().members[0].step, 2);
}

TEST(LighthouseJoin, LatestOfTwoCallsIsCancelled_TheOtherCounts) {
  LighthouseWorld world(OfMin(2));
  world.Join(Member("a", 1));
  const QuorumCall second = world.Join(Member("a", 2));
  EXPECT_TRUE(world.lighthouse.Cancel(second.wait()));
  const QuorumCall b = world.Join("b");
  ASSERT_EQ(b.members(), "a b");
  EXPECT_EQ(b.quorum().members[0].step, 1);
}

TEST(LighthouseJoin, TooManyCallsOfAReplica_TheOldestEnds) {
  LighthouseWorld world(OfMin(2));
  std::vector<QuorumCall> calls;
  for (int i = 0; i < 9; ++i) calls.push_back(world.Join(Member("a", i)));
  EXPECT_EQ(calls[0].status().code(), StatusCode::kAborted);
  EXPECT_FALSE(calls[1].done());
  EXPECT_EQ(world.lighthouse.wait_count(), 8u);
}

// Else a quorum would have a member that no longer listens.
TEST(LighthouseCancel, CallerGoes_HasNotJoined) {
  LighthouseWorld world(OfMin(2));
  const QuorumCall a = world.Join("a");
  EXPECT_TRUE(world.lighthouse.Cancel(a.wait()));
  world.Run();
  EXPECT_EQ(a.status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(world.lighthouse.Cancel(a.wait()));
  const QuorumCall b = world.Join("b");
  EXPECT_FALSE(b.done());
  // It still counts as one that sends heartbeats, of which more than half must join.
  EXPECT_EQ(world.Join("c").members(), "");
  world.Pass(absl::Seconds(5), {"b", "c"});
  EXPECT_EQ(b.members(), "b c");
}

TEST(LighthouseCancel, CallIsOver_NothingHappens) {
  LighthouseWorld world(OfMin(2));
  const QuorumCall a = world.Join("a");
  world.Join("b");
  EXPECT_TRUE(a.done());
  EXPECT_FALSE(world.lighthouse.Cancel(a.wait()));
  EXPECT_FALSE(world.lighthouse.Cancel(WaitId(12345)));
}

TEST(LighthouseTimeout, NoQuorumInTime_ErrorNamesWhoIsMissing) {
  LighthouseWorld world(OfMin(2));
  const QuorumCall a = world.Join(Member("a"), absl::Milliseconds(250));
  EXPECT_EQ(world.lighthouse.NextDeadline() - world.clock.Now(), absl::Milliseconds(100));
  world.Pass(absl::Milliseconds(200), {"b"});
  // Not with the next tick, when the client would no longer listen.
  EXPECT_EQ(world.lighthouse.NextDeadline() - world.clock.Now(), absl::Milliseconds(50));
  world.clock.Advance(absl::Milliseconds(50) - absl::Nanoseconds(1));
  world.AdvanceIfDue();
  EXPECT_FALSE(a.done());
  world.clock.Advance(absl::Nanoseconds(1));
  world.AdvanceIfDue();
  EXPECT_EQ(a.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      std::string(a.status().message()),
      AllOf(HasSubstr("replica \"a\" waited 250ms for a quorum"), HasSubstr("the minimum is 2"),
            HasSubstr("--lighthouse-min-replicas"), HasSubstr("not joined: \"b\"")));
  EXPECT_EQ(world.lighthouse.wait_count(), 0u);
}

TEST(LighthouseTimeout, SeveralAtOnce_EachIsCountedInTheErrors) {
  LighthouseWorld world(OfMin(3));
  const QuorumCall a = world.Join(Member("a"), absl::Seconds(1));
  const QuorumCall b = world.Join(Member("b"), absl::Seconds(1));
  world.Pass(absl::Seconds(1), {"a", "b"});
  for (const QuorumCall& call : {a, b}) {
    EXPECT_THAT(std::string(call.status().message()), HasSubstr("2 of the replicas"));
  }
}

TEST(LighthouseTimeout, QuorumIsDueAtTheDeadline_IsFormed) {
  LighthouseOptions options;
  options.quorum_tick = absl::Hours(1);
  options.join_timeout = absl::Seconds(1);
  LighthouseWorld world(options);
  EXPECT_TRUE(world.Beat("b").ok());
  EXPECT_TRUE(world.Beat("a").ok());
  EXPECT_TRUE(world.Beat("c").ok());
  const QuorumCall a = world.Join(Member("a"), absl::Seconds(1));
  const QuorumCall b = world.Join(Member("b"), absl::Seconds(2));
  world.Pass(absl::Seconds(1));
  EXPECT_EQ(a.members(), "a b");
  EXPECT_EQ(b.members(), "a b");
}

TEST(LighthouseTimeout, NoneOrNegative_IsBounded) {
  LighthouseWorld world(OfMin(2));
  const QuorumCall late = world.Join(Member("a"), -absl::Seconds(1));
  const QuorumCall patient = world.Join(Member("a"), absl::InfiniteDuration());
  world.AdvanceIfDue();
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  world.clock.Advance(absl::Hours(24) - absl::Seconds(1));
  world.AdvanceIfDue();
  EXPECT_FALSE(patient.done());
  world.clock.Advance(absl::Seconds(1));
  world.AdvanceIfDue();
  EXPECT_EQ(patient.status().code(), StatusCode::kDeadlineExceeded);
}

TEST(LighthouseTick, IsTheTimeBetweenTwoChecks) {
  LighthouseOptions options = OfMin(1);
  options.quorum_tick = absl::Seconds(2);
  options.join_timeout = absl::Milliseconds(1);
  LighthouseWorld world(options);
  EXPECT_TRUE(world.Beat("c").ok());
  const QuorumCall a = world.Join("a");
  EXPECT_FALSE(a.done());
  // More than half now, but the tick and not the heartbeat finds it.
  world.clock.Advance(absl::Milliseconds(500));
  const QuorumCall b = world.Join("b");
  EXPECT_EQ(b.members(), "a b");
}

TEST(LighthouseTick, NobodyIsKnown_NothingDependsOnTime) {
  LighthouseWorld world;
  EXPECT_EQ(world.lighthouse.NextDeadline(), absl::InfiniteFuture());
  world.lighthouse.Advance();
  world.Form({"a"});
  EXPECT_LT(world.lighthouse.NextDeadline(), absl::InfiniteFuture());
  world.Pass(absl::Minutes(10));
  EXPECT_EQ(world.lighthouse.NextDeadline(), absl::InfiniteFuture());
  EXPECT_EQ(world.Sizes().at("lighthouse.replicas"), 0u);
  // The id of the quorum is not forgotten.
  EXPECT_EQ(world.Join("b").id(), 2);
}

// The coordinator's process was stopped: that is not the replicas' silence.
TEST(LighthousePause, HeartbeatsCouldNotBeReceived_ReplicasAreNotDead) {
  LighthouseWorld world;
  world.Form({"a", "b", "c"});
  world.clock.Advance(absl::Minutes(1));
  world.lighthouse.ExtendHeartbeatDeadlines(absl::Minutes(1));
  EXPECT_FALSE(world.Join("a").done());
  world.Pass(absl::Seconds(5), {"a"});
  EXPECT_EQ(world.Join("a").members(), "a");
}

TEST(LighthousePause, ExtensionDoesNotReachIntoTheFuture) {
  LighthouseWorld world;
  world.Form({"a", "b"});
  world.lighthouse.ExtendHeartbeatDeadlines(absl::Hours(1));
  world.Pass(absl::Seconds(5), {"a"});
  EXPECT_EQ(world.Join("a").members(), "a");
}

TEST(LighthouseStop, EndsCallsAndRefusesLaterOnes) {
  LighthouseWorld world(OfMin(2));
  const QuorumCall a = world.Join("a");
  world.lighthouse.Stop();
  world.Run();
  EXPECT_EQ(a.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(world.Join("b").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(world.Beat("b").code(), StatusCode::kUnavailable);
  EXPECT_EQ(world.lighthouse.NextDeadline(), absl::InfiniteFuture());
  EXPECT_FALSE(world.lighthouse.Cancel(a.wait()));
}

TEST(LighthouseLimits, TooManyReplicas_OnlyTheSilentMakeRoom) {
  LighthouseOptions options;
  options.max_replicas = 3;
  LighthouseWorld world(options);
  for (const char* id : {"a", "b", "c"}) EXPECT_TRUE(world.Beat(id).ok());
  EXPECT_EQ(world.Beat("d").code(), StatusCode::kResourceExhausted);
  const QuorumCall d = world.Join("d");
  EXPECT_EQ(d.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(d.status().message()), HasSubstr("\"d\""));
  EXPECT_TRUE(world.Beat("a").ok());
  // A replica that waits stays, silent or not.
  const QuorumCall b = world.Join("b");
  world.Pass(absl::Seconds(5), {"a"});
  EXPECT_TRUE(world.Beat("d").ok());
  EXPECT_EQ(world.Beat("e").code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(b.done());
}

TEST(LighthouseLimits, LongIdOrMember_IsRefused) {
  LighthouseWorld world;
  EXPECT_TRUE(world.Beat(std::string(1024, 'x')).ok());
  EXPECT_EQ(world.Beat(std::string(1025, 'x')).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(world.Join(std::string(1025, 'x')).status().code(), StatusCode::kInvalidArgument);
  QuorumMember member = Member("a");
  member.encoded = std::string((64 << 10) + 1, 'd');
  EXPECT_EQ(world.Join(member).status().code(), StatusCode::kInvalidArgument);
  member = Member("a");
  member.address = std::string((64 << 10) + 1, 'd');
  EXPECT_EQ(world.Join(member).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(world.Sizes().at("lighthouse.replicas"), 1u);
}

TEST(LighthouseLimits, TooManyBytesOfAllCalls_AreRefused) {
  LighthouseOptions options = OfMin(100);
  options.max_pending_bytes = 10'000;
  LighthouseWorld world(options);
  QuorumMember large = Member("a");
  large.encoded = std::string(6000, 'd');
  const QuorumCall a = world.Join(large);
  large.replica_id = "b";
  EXPECT_EQ(world.Join(large).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(world.lighthouse.Cancel(a.wait()));
  EXPECT_FALSE(world.Join(large).done());
}

TEST(LighthouseLimits, EmptyId_IsAnIdLikeAnyOther) {
  LighthouseWorld world;
  EXPECT_EQ(world.Join("").members(), "");
  EXPECT_EQ(world.lighthouse.wait_count(), 0u);
}

// Any order of calls, heartbeats, cancellations and time. Checked after each step, here and in
// LighthouseWorld::Run: ids never decrease, quorums are ordered, not empty, and contain the caller;
// no replica of a minority gets one.
TEST(LighthouseRandom, InvariantsHold) {
  constexpr uint32_t kSeed = 20260;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  const auto below = [&random](uint32_t bound) { return random() % bound; };
  LighthouseOptions options = OfMin(2);
  options.max_replicas = 6;
  LighthouseWorld world(options);
  std::vector<std::pair<std::string, QuorumCall>> calls;
  int64_t last_id = 0;
  int quorums = 0;
  for (int step = 0; step < 20'000; ++step) {
    const std::string id(1, static_cast<char>('a' + below(8)));
    switch (below(6)) {
      case 0:
      case 1: {
        QuorumMember member = Member(id, step);
        member.shrink_only = below(8) == 0;
        member.commit_failures = below(8) == 0 ? 1 : 0;
        calls.emplace_back(id, world.Join(std::move(member), absl::Seconds(below(100))));
        break;
      }
      case 2:
        if (calls.empty()) break;
        world.lighthouse.Cancel(calls[below(static_cast<uint32_t>(calls.size()))].second.wait());
        break;
      case 3:
        world.clock.Advance(absl::Milliseconds(below(4000)));
        world.AdvanceIfDue();
        break;
      default:
        world.Beat(id).IgnoreError();
        break;
    }
    world.Run();
    for (auto call = calls.begin(); call != calls.end();) {
      const QuorumCall& answered = call->second;
      if (!answered.done()) {
        ++call;
        continue;
      }
      if (answered.status().ok()) {
        ++quorums;
        ASSERT_GE(answered.id(), last_id);
        last_id = answered.id();
        const std::string members = answered.members();
        ASSERT_THAT(members, HasSubstr(call->first));
        ASSERT_TRUE(std::is_sorted(
            answered.quorum().members.begin(), answered.quorum().members.end(),
            [](const auto& a, const auto& b) { return a.replica_id < b.replica_id; }));
      }
      call = calls.erase(call);
    }
    ASSERT_LE(world.Sizes().at("lighthouse.replicas"), 6u);
  }
  EXPECT_GT(quorums, 500);
}

}  // namespace
}  // namespace ferry::coord
