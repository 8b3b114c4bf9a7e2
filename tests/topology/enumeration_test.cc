// SPDX-License-Identifier: Apache-2.0
// Reports of nodes: which are accepted, and how often.
#include "topology/enumeration.h"

#include "tests/topology/topology_test_util.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The order of arrival must not number devices.
TEST(Enumeration, NumbersByNodeIdWhenNodeOneReportsFirst) {
  Enumeration enumeration(2);
  FERRY_ASSERT_OK(enumeration.Add(TestNode(1)));
  EXPECT_THAT(enumeration.Missing(), ElementsAre(0));
  FERRY_ASSERT_OK(enumeration.Add(TestNode(0)));
  ASSERT_TRUE(enumeration.complete());
  const absl::StatusOr<GlobalTopology> global = enumeration.Build();
  FERRY_ASSERT_OK(global);
  EXPECT_EQ(global->DeviceName(0), "node0/host:0");
  EXPECT_EQ(global->DeviceName(1), "node1/host:0");
}

// A retried call must not fail.
TEST(Enumeration, AcceptsTheSameReportTwice) {
  Enumeration enumeration(1);
  FERRY_ASSERT_OK(enumeration.Add(TestNode(0)));
  FERRY_ASSERT_OK(enumeration.Add(TestNode(0)));
  FERRY_ASSERT_OK(enumeration.Build());
}

// A restarted process that sees other GPUs must not pass for the old one.
TEST(Enumeration, RefusesADifferentReportAndKeepsTheFirst) {
  Enumeration enumeration(1);
  FERRY_ASSERT_OK(enumeration.Add(TestNode(0)));
  LocalTopology other = TestNode(0);
  other.devices.push_back(TestGpu(0));
  EXPECT_THAT(enumeration.Add(other),
              FailsWith(absl::StatusCode::kInternal,
                        AllOf(HasSubstr("node 0 reports a different local topology"),
                              HasSubstr("devices: 1 before, 2 now"))));
  EXPECT_EQ(enumeration.Build()->devices().size(), 1u);
}

TEST(Enumeration, AcceptsANewReportAfterTheNodeWasRemoved) {
  Enumeration enumeration(1);
  FERRY_ASSERT_OK(enumeration.Add(TestNode(0)));
  enumeration.Remove(0);
  LocalTopology other = TestNode(0);
  other.devices.push_back(TestGpu(0));
  FERRY_ASSERT_OK(enumeration.Add(other));
}

TEST(Enumeration, RefusesNodesOutsideTheJob) {
  Enumeration enumeration(2);
  EXPECT_THAT(enumeration.Add(TestNode(2)),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("nodes 0 to 1")));
  LocalTopology negative = TestNode(0);
  negative.node_id = -1;
  EXPECT_THAT(enumeration.Add(negative),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("negative")));
}

TEST(Enumeration, NamesTheMissingNodes) {
  Enumeration enumeration(5);
  FERRY_ASSERT_OK(enumeration.Add(TestNode(2)));
  EXPECT_THAT(enumeration.Build(),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("node 0,1,3,4 of 5")));
}

}  // namespace
}  // namespace ferry
