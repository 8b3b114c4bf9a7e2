// SPDX-License-Identifier: Apache-2.0
// Each rule of a quorum and its boundary. The numbers are those of torchft's own tests where it has
// one (src/lighthouse.rs).
#include "coord/lighthouse/quorum_rules.h"

#include <deque>
#include <initializer_list>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(10);

// The replicas of a decision; added in the order of their ids.
class Scene {
 public:
  Scene& Joined(std::string id, absl::Duration ago = absl::ZeroDuration(),
                absl::Duration silent = absl::ZeroDuration(), bool shrink_only = false) {
    members_.push_back({.replica_id = std::move(id), .shrink_only = shrink_only});
    views_.push_back({members_.back().replica_id, kNow - silent, &members_.back(), kNow - ago});
    return *this;
  }
  Scene& Beating(std::string id, absl::Duration silent = absl::ZeroDuration()) {
    members_.push_back({.replica_id = std::move(id)});
    views_.push_back({members_.back().replica_id, kNow - silent});
    return *this;
  }
  Scene& Previous(std::initializer_list<std::string> ids) {
    has_previous_ = true;
    previous_.id = 7;
    for (const std::string& id : ids) previous_.members.push_back({.replica_id = id});
    return *this;
  }
  QuorumDecision Decide() const {
    return DecideQuorum(views_, has_previous_ ? &previous_ : nullptr, options, kNow);
  }
  // The ids of the quorum, or the name of the obstacle.
  std::string operator()() const {
    const QuorumDecision decision = Decide();
    EXPECT_EQ(decision.members.empty(), decision.obstacle != QuorumObstacle::kNone);
    switch (decision.obstacle) {
      case QuorumObstacle::kNone:
        break;
      case QuorumObstacle::kTooFewReplicas:
        return "too few";
      case QuorumObstacle::kMinority:
        return "minority";
      case QuorumObstacle::kStragglers:
        return "stragglers";
      case QuorumObstacle::kNoPreviousMember:
        return "newcomers";
    }
    std::string ids;
    for (const QuorumMember* member : decision.members) {
      ids += (ids.empty() ? "" : " ") + member->replica_id;
    }
    return ids;
  }
  std::string Why() const {
    return DescribeObstacle(Decide(), views_, has_previous_ ? &previous_ : nullptr, options, kNow);
  }

  LighthouseOptions options;

 private:
  std::deque<QuorumMember> members_;
  std::vector<ReplicaView> views_;
  Quorum previous_;
  bool has_previous_ = false;
};

constexpr absl::Duration kNone = absl::ZeroDuration();

TEST(QuorumRules, NobodyHasJoined_NoQuorum) {
  EXPECT_EQ(Scene()(), "too few");
  EXPECT_EQ(Scene().Beating("a")(), "too few");
}

TEST(QuorumRules, AllThatSendHeartbeatsHaveJoined_QuorumAtOnce) {
  EXPECT_EQ(Scene().Joined("a")(), "a");
  EXPECT_EQ(Scene().Joined("a").Joined("b").Joined("c")(), "a b c");
}

TEST(QuorumRules, FewerThanMinReplicas_Wait) {
  Scene scene;
  scene.options.min_replicas = 2;
  EXPECT_EQ(scene.Joined("a")(), "too few");
  EXPECT_EQ(scene.Joined("b")(), "a b");
}

// A minimum of zero would otherwise be met by an empty quorum.
TEST(QuorumRules, MinReplicasOfZero_CountsAsOne) {
  Scene scene;
  scene.options.min_replicas = 0;
  EXPECT_EQ(scene(), "too few");
  EXPECT_EQ(scene.Joined("a")(), "a");
}

// Exactly half of the replicas is no majority: otherwise each half of a split job would continue.
TEST(QuorumRules, HalfOrLessOfTheHealthyHaveJoined_Wait) {
  EXPECT_EQ(Scene().Joined("a", absl::Hours(1)).Beating("b")(), "minority");
  EXPECT_EQ(Scene().Joined("a", absl::Hours(1)).Beating("b").Beating("c")(), "minority");
  EXPECT_EQ(
      Scene().Joined("a", absl::Hours(1)).Joined("b", absl::Hours(1)).Beating("c").Beating("d")(),
      "minority");
  EXPECT_EQ(Scene().Joined("a", absl::Hours(1)).Joined("b", absl::Hours(1)).Beating("c")(), "a b");
}

TEST(QuorumRules, StragglerSendsHeartbeats_WaitsForItUntilTheJoinTimeout) {
  const auto with_first = [](absl::Duration ago) {
    return Scene().Joined("a", ago).Joined("b", kNone).Beating("c")();
  };
  EXPECT_EQ(with_first(kNone), "stragglers");
  EXPECT_EQ(with_first(absl::Seconds(60) - absl::Milliseconds(1)), "stragglers");
  EXPECT_EQ(with_first(absl::Seconds(60)), "a b");
}

TEST(QuorumRules, HeartbeatAtTheTimeout_ReplicaIsDead) {
  const auto with_silence = [](absl::Duration silent) {
    return Scene().Joined("a").Joined("b").Beating("c", silent)();
  };
  EXPECT_EQ(with_silence(absl::Seconds(5) - absl::Milliseconds(1)), "stragglers");
  EXPECT_EQ(with_silence(absl::Seconds(5)), "a b");
  // One that has joined is no member either.
  EXPECT_EQ(Scene().Joined("a").Joined("b", kNone, absl::Seconds(5))(), "a");
  EXPECT_EQ(Scene().Joined("a", kNone, absl::Seconds(5))(), "too few");
}

// Its joining does not begin the wait for stragglers either.
TEST(QuorumRules, SilentReplicaJoinedFirst_DoesNotCount) {
  EXPECT_EQ(
      Scene().Joined("a", absl::Hours(1), absl::Seconds(5)).Joined("b").Joined("c").Beating("d")(),
      "stragglers");
}

TEST(QuorumRules, AllOfThePreviousQuorum_AtOnceAlsoWithStragglers) {
  EXPECT_EQ(Scene().Previous({"a", "b"}).Joined("a").Joined("b").Beating("c")(), "a b");
  // Even fewer than half, and fewer than the minimum.
  Scene scene;
  scene.options.min_replicas = 3;
  EXPECT_EQ(scene.Previous({"a"}).Joined("a").Beating("b").Beating("c").Beating("d")(), "a");
}

TEST(QuorumRules, NewcomersHaveJoined_AreInTheFastQuorum) {
  EXPECT_EQ(Scene().Previous({"b"}).Joined("a").Joined("b").Joined("c").Beating("d")(), "a b c");
}

TEST(QuorumRules, MemberOfThePreviousQuorumIsMissing_OtherRulesApply) {
  EXPECT_EQ(Scene().Previous({"a", "b"}).Joined("a").Beating("b")(), "minority");
  EXPECT_EQ(Scene().Previous({"a", "b"}).Joined("a").Joined("c").Beating("b")(), "stragglers");
  // It is dead: the others go on without it.
  EXPECT_EQ(Scene().Previous({"a", "b"}).Joined("a").Beating("b", absl::Seconds(5))(), "a");
  EXPECT_EQ(Scene().Previous({"a", "b"}).Joined("a")(), "a");
  // Joined but dead.
  EXPECT_EQ(Scene().Previous({"a", "b"}).Joined("a").Joined("b", kNone, absl::Seconds(9))(), "a");
}

TEST(QuorumRules, ShrinkOnly_NewcomersAreLeftOut) {
  EXPECT_EQ(Scene()
                .Previous({"b", "d"})
                .Joined("a")
                .Joined("b", kNone, kNone, true)
                .Joined("c")
                .Joined("d")(),
            "b d");
  // A newcomer that says so counts, too. As torchft's own: {a} of {a, b}, though b is dead.
  EXPECT_EQ(Scene().Previous({"a", "b"}).Joined("a").Joined("c", kNone, kNone, true)(), "a");
}

TEST(QuorumRules, ShrinkOnlyOfASilentReplica_DoesNotCount) {
  EXPECT_EQ(
      Scene().Previous({"a"}).Joined("a").Joined("b").Joined("c", kNone, absl::Hours(1), true)(),
      "a b");
}

TEST(QuorumRules, ShrinkOnlyWithoutAPreviousQuorum_AdmitsAll) {
  EXPECT_EQ(Scene().Joined("a", kNone, kNone, true).Joined("b")(), "a b");
}

// torchft's server forms an empty quorum then, which no replica receives, and the next ones are
// empty.
TEST(QuorumRules, ShrinkOnlyAndNewcomersAlone_NoEmptyQuorum) {
  EXPECT_EQ(Scene().Previous({"a"}).Joined("c", kNone, kNone, true)(), "newcomers");
}

TEST(QuorumObstacles, NameTheMissingAndWhatHelps) {
  Scene few;
  few.options.min_replicas = 3;
  few.Previous({"a", "b", "gone"})
      .Joined("a")
      .Beating("b", absl::Seconds(12))
      .Beating("c", absl::Seconds(1))
      .Joined("d", kNone, absl::Seconds(7));
  EXPECT_EQ(few.Why(),
            "1 of the replicas that send heartbeats has joined, but the minimum is 3: start more "
            "replicas, or lower --lighthouse-min-replicas; not joined: \"c\" (last heartbeat 1s "
            "ago); joined, but "
            "without heartbeats: \"d\" (for 7s); silent members of quorum 7: \"b\" (for 12s), "
            "\"gone\" (forgotten)");
  EXPECT_THAT(Scene().Joined("a").Beating("b").Why(),
              AllOf(HasSubstr("1 of 2 replicas"), HasSubstr("more than half must"),
                    HasSubstr("not joined: \"b\""), Not(HasSubstr("silent"))));
  EXPECT_THAT(Scene().Joined("a", absl::Seconds(20)).Joined("b").Beating("c").Why(),
              AllOf(HasSubstr("up to 40s more"), HasSubstr("--lighthouse-join-timeout"),
                    HasSubstr("not joined: \"c\"")));
  EXPECT_THAT(Scene().Previous({"a"}).Joined("c", kNone, kNone, true).Why(),
              AllOf(HasSubstr("shrink_only"), HasSubstr("quorum 7"), HasSubstr("\"a\"")));
}

TEST(QuorumObstacles, ManyAreMissing_TheFirstAreNamed) {
  Scene scene;
  scene.Joined("a");
  for (int i = 10; i < 30; ++i) scene.Beating("r" + std::to_string(i));
  EXPECT_THAT(scene.Why(),
              AllOf(HasSubstr("\"r17\""), Not(HasSubstr("\"r18\"")), HasSubstr("and 12 more")));
}

}  // namespace
}  // namespace ferry::coord
