// SPDX-License-Identifier: Apache-2.0
// The lighthouse's report about itself, for ferry status.
#include "coord/lighthouse/lighthouse.h"

#include <string>

#include "tests/coord/lighthouse/lighthouse_world.h"

namespace ferry::coord {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(LighthouseReport, NobodyHasCalled_IsUnused) {
  LighthouseWorld world;
  EXPECT_TRUE(world.lighthouse.Report(10).is_unused);
  EXPECT_TRUE(world.Beat("a").ok());
  EXPECT_FALSE(world.lighthouse.Report(10).is_unused);
  EXPECT_EQ(world.lighthouse.Report(10).quorum_id, 0);
  EXPECT_EQ(world.lighthouse.Report(10).waits_for, "");
}

TEST(LighthouseReport, NamesMembersThoseThatWaitAndWhatFor) {
  LighthouseWorld world;
  EXPECT_TRUE(world.Beat("b").ok());
  EXPECT_TRUE(world.Beat("c").ok());
  world.Join(Member("a", 4));
  world.Join(Member("b", 5));
  world.Join(Member("c", 5));
  world.Pass(absl::Seconds(6), {"a", "b"});
  world.Join(Member("b", 6));
  world.Pass(absl::Seconds(2), {"a", "b"});
  const LighthouseReport report = world.lighthouse.Report(10);
  EXPECT_EQ(report.quorum_id, 1);
  EXPECT_EQ(report.quorum_size, 3u);
  EXPECT_EQ(report.quorum_age, absl::Seconds(8));
  EXPECT_THAT(report.waits_for, HasSubstr("not joined: \"a\""));
  EXPECT_THAT(report.waits_for, HasSubstr("silent members of quorum 1: \"c\" (for 8s)"));
  ASSERT_THAT(report.replicas, SizeIs(3));
  const ReplicaReport& a = report.replicas[0];
  EXPECT_TRUE(a.id == "a" && a.is_in_quorum && a.is_healthy && !a.has_joined);
  EXPECT_EQ(a.step, 4);
  EXPECT_EQ(a.heartbeat_age, absl::ZeroDuration());
  const ReplicaReport& b = report.replicas[1];
  EXPECT_TRUE(b.id == "b" && b.is_in_quorum && b.is_healthy && b.has_joined);
  EXPECT_EQ(b.step, 6);
  EXPECT_EQ(b.address, "http://b");
  EXPECT_EQ(b.joined_for, absl::Seconds(2));
  const ReplicaReport& c = report.replicas[2];
  EXPECT_TRUE(c.id == "c" && c.is_in_quorum && !c.is_healthy && !c.has_joined);
  EXPECT_EQ(c.heartbeat_age, absl::Seconds(8));
}

TEST(LighthouseReport, ForgottenMemberOfTheQuorum_HasNoHeartbeat) {
  LighthouseWorld world;
  world.Form({"a"});
  world.Pass(absl::Minutes(10));
  const LighthouseReport report = world.lighthouse.Report(10);
  ASSERT_THAT(report.replicas, SizeIs(1));
  EXPECT_EQ(report.replicas[0].heartbeat_age, absl::InfiniteDuration());
}

TEST(LighthouseReport, MoreReplicasThanAskedFor_AreCounted) {
  LighthouseWorld world;
  for (const char* id : {"a", "b", "c"}) EXPECT_TRUE(world.Beat(id).ok());
  const LighthouseReport report = world.lighthouse.Report(2);
  EXPECT_THAT(report.replicas, SizeIs(2));
  EXPECT_EQ(report.replica_count, 3u);
}

}  // namespace
}  // namespace ferry::coord
