// SPDX-License-Identifier: Apache-2.0
// Members of collectives, their order of arrival, and mismatches.
#include "tensorflow/worker/collectives/group_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensor/data_type.h"

namespace ferry::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

v1::CollectiveJoin JoinOf(int group, int instance, int size) {
  v1::CollectiveJoin join;
  join.set_group_key(group);
  join.set_instance_key(instance);
  join.set_group_size(size);
  join.set_dtype(static_cast<int>(DataType::kFloat));
  join.add_dim(2);
  return join;
}

class GroupTableTest : public ::testing::Test {
 protected:
  std::vector<GroupTable::Answer> Join(int device, const v1::CollectiveJoin& join) {
    return table_.Join(device, join, kStart);
  }
  // All answers have that code and text.
  static void ExpectAll(const std::vector<GroupTable::Answer>& answers, size_t count,
                        absl::StatusCode code, const std::string& text) {
    EXPECT_THAT(answers, SizeIs(count));
    for (const auto& answer : answers) {
      EXPECT_EQ(answer.status.code(), code) << answer.status;
      EXPECT_THAT(answer.status.message(), HasSubstr(text));
    }
  }

  GroupTable table_{{"/task:0", "/task:1", "/task:2", "/task:3"}};
};

TEST_F(GroupTableTest, LastMemberMakesItComplete) {
  EXPECT_THAT(Join(2, JoinOf(1, 5, 3)), IsEmpty());
  EXPECT_THAT(Join(0, JoinOf(1, 5, 3)), IsEmpty());
  const auto answers = Join(3, JoinOf(1, 5, 3));
  ASSERT_THAT(answers, SizeIs(3));
  for (const auto& answer : answers) {
    EXPECT_TRUE(answer.status.ok());
    // By rank, which is the devices' order, not that of coming.
    EXPECT_THAT(answer.members, ElementsAre(0, 2, 3));
  }
  EXPECT_EQ(table_.waiting_count(), 0u);
}

TEST_F(GroupTableTest, InstancesAndGroupsDoNotMix) {
  EXPECT_THAT(Join(0, JoinOf(1, 5, 2)), IsEmpty());
  EXPECT_THAT(Join(1, JoinOf(1, 6, 2)), IsEmpty());
  EXPECT_THAT(Join(2, JoinOf(2, 5, 2)), IsEmpty());
  EXPECT_THAT(Join(1, JoinOf(1, 5, 2)), SizeIs(2));
  EXPECT_THAT(Join(3, JoinOf(2, 5, 2)), SizeIs(2));
  EXPECT_THAT(Join(0, JoinOf(1, 6, 2)), SizeIs(2));
}

TEST_F(GroupTableTest, AnotherSizeEndsTheGroup) {
  EXPECT_THAT(Join(0, JoinOf(1, 5, 3)), IsEmpty());
  ExpectAll(Join(1, JoinOf(1, 5, 2)), 2, absl::StatusCode::kInternal,
            "Device /task:1 is joining a group with size 2, but that group has size 3");
  ExpectAll(Join(2, JoinOf(1, 9, 3)), 1, absl::StatusCode::kInternal, "with size 2");
}

TEST_F(GroupTableTest, FullGroupAcceptsNoOther) {
  EXPECT_THAT(Join(0, JoinOf(1, 5, 2)), IsEmpty());
  EXPECT_THAT(Join(1, JoinOf(1, 5, 2)), SizeIs(2));
  ExpectAll(Join(2, JoinOf(1, 6, 2)), 1, absl::StatusCode::kInternal,
            "Device /task:2 is joining a group that is already full (group_key=1)");
}

TEST_F(GroupTableTest, GroupThatCannotBecomeFullIsRefusedAtOnce) {
  ExpectAll(Join(0, JoinOf(1, 5, 5)), 1, absl::StatusCode::kInvalidArgument,
            "only 4 devices have collectives in this step, and a step of one session has to "
            "have all of them");
}

TEST_F(GroupTableTest, ShapesMustBeTheSame) {
  EXPECT_THAT(Join(0, JoinOf(1, 5, 3)), IsEmpty());
  v1::CollectiveJoin other = JoinOf(1, 5, 3);
  other.add_dim(1);
  ExpectAll(Join(1, other), 2, absl::StatusCode::kInvalidArgument,
            "Op at device /task:1 expected shape [2,1] but another member in the group expected "
            "shape [2]");
  // Later members get the error too; other instances of the group continue.
  ExpectAll(Join(2, JoinOf(1, 5, 3)), 1, absl::StatusCode::kInvalidArgument, "[2,1]");
  EXPECT_THAT(Join(2, JoinOf(1, 6, 3)), IsEmpty());
}

TEST_F(GroupTableTest, KindsTypesAndMergesMustBeTheSame) {
  EXPECT_THAT(Join(0, JoinOf(1, 1, 2)), IsEmpty());
  v1::CollectiveJoin type = JoinOf(1, 1, 2);
  type.set_dtype(static_cast<int>(DataType::kInt32));
  ExpectAll(Join(1, type), 2, absl::StatusCode::kInternal,
            "Collective instance 1 expected type 0 and data_type 1 but got type 0 and data_type 3");
  EXPECT_THAT(Join(0, JoinOf(1, 2, 2)), IsEmpty());
  v1::CollectiveJoin kind = JoinOf(1, 2, 2);
  kind.set_kind(2);
  ExpectAll(Join(1, kind), 2, absl::StatusCode::kInternal, "but got type 2");
  EXPECT_THAT(Join(0, JoinOf(1, 3, 2)), IsEmpty());
  v1::CollectiveJoin merge = JoinOf(1, 3, 2);
  merge.set_merge(1);
  ExpectAll(Join(1, merge), 2, absl::StatusCode::kInvalidArgument,
            "/task:1 is to merge by Mul and then Id, but another member by Add and then Id");
}

TEST_F(GroupTableTest, BroadcastHasOneSource) {
  v1::CollectiveJoin recv = JoinOf(1, 1, 2);
  recv.set_kind(1);
  v1::CollectiveJoin send = recv;
  send.set_is_source(true);
  EXPECT_THAT(Join(0, recv), IsEmpty());
  const auto answers = Join(1, send);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].source_rank, 1);

  recv.set_instance_key(2);
  EXPECT_THAT(Join(0, recv), IsEmpty());
  ExpectAll(Join(1, recv), 2, absl::StatusCode::kInternal, "found no source for broadcast");

  send.set_instance_key(3);
  EXPECT_THAT(Join(0, send), IsEmpty());
  ExpectAll(Join(1, send), 2, absl::StatusCode::kInternal,
            "already has source /task:0, received second claim from /task:1");
}

TEST_F(GroupTableTest, MemberMayNotJoinTwice) {
  EXPECT_THAT(Join(0, JoinOf(1, 1, 2)), IsEmpty());
  ExpectAll(Join(0, JoinOf(1, 1, 2)), 2, absl::StatusCode::kInternal, "/task:0 comes twice");
  EXPECT_THAT(Join(0, JoinOf(1, 2, 2)), IsEmpty());
  EXPECT_THAT(Join(1, JoinOf(1, 2, 2)), SizeIs(2));
  ExpectAll(Join(1, JoinOf(1, 2, 2)), 1, absl::StatusCode::kInternal, "/task:1 comes twice");
}

TEST_F(GroupTableTest, TimeoutEndsAllAndNamesTheMissing) {
  v1::CollectiveJoin join = JoinOf(1, 1, 4);
  join.set_timeout_ms(2000);
  EXPECT_EQ(table_.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(Join(0, join), IsEmpty());
  EXPECT_EQ(table_.NextDeadline(), kStart + absl::Seconds(2));
  // Without a time of its own, and later ones do not move the first.
  EXPECT_THAT(Join(2, JoinOf(1, 1, 4)), IsEmpty());
  EXPECT_THAT(table_.Expire(kStart + absl::Milliseconds(1999)), IsEmpty());
  const auto answers = table_.Expire(kStart + absl::Seconds(2));
  ExpectAll(answers, 2, absl::StatusCode::kDeadlineExceeded,
            "2 of 4 members have come to instance 1 of group 1; not /task:1, /task:3");
  EXPECT_EQ(table_.NextDeadline(), absl::InfiniteFuture());
  ExpectAll(Join(1, join), 1, absl::StatusCode::kDeadlineExceeded, "not /task:1, /task:3");
}

TEST_F(GroupTableTest, MissingMembersAreUnknownUnlessTheGroupIsComplete) {
  v1::CollectiveJoin join = JoinOf(1, 1, 2);
  join.set_timeout_ms(1);
  EXPECT_THAT(Join(0, join), IsEmpty());
  ExpectAll(table_.Expire(kStart + absl::Seconds(1)), 1, absl::StatusCode::kDeadlineExceeded,
            "; not 1 of /task:1, /task:2, /task:3");
  // Another instance has shown the members.
  EXPECT_THAT(Join(0, JoinOf(2, 1, 2)), IsEmpty());
  EXPECT_THAT(Join(3, JoinOf(2, 1, 2)), SizeIs(2));
  v1::CollectiveJoin second = JoinOf(2, 2, 2);
  second.set_timeout_ms(1);
  EXPECT_THAT(Join(0, second), IsEmpty());
  const auto answers = table_.Expire(kStart + absl::Seconds(1));
  ExpectAll(answers, 1, absl::StatusCode::kDeadlineExceeded, "; not /task:3");
  EXPECT_THAT(answers[0].status.message(), Not(HasSubstr("/task:1")));
}

TEST_F(GroupTableTest, FailEndsAllPendingAndLaterMembers) {
  EXPECT_THAT(Join(0, JoinOf(1, 1, 2)), IsEmpty());
  EXPECT_THAT(Join(1, JoinOf(2, 1, 2)), IsEmpty());
  ExpectAll(table_.Fail(absl::UnavailableError("node 3 has died")), 2,
            absl::StatusCode::kUnavailable, "node 3 has died");
  ExpectAll(Join(2, JoinOf(2, 1, 2)), 1, absl::StatusCode::kUnavailable, "node 3 has died");
  EXPECT_THAT(table_.Fail(absl::UnavailableError("node 2 has died")), IsEmpty());
}

// The shortest time of those that have come counts, until all are there.
TEST_F(GroupTableTest, ShorterTimeoutComesLater_IsTheDeadlineUntilAllHaveJoined) {
  const auto join = [](int32_t timeout_ms) {
    v1::CollectiveJoin made = JoinOf(1, 1, 3);
    made.set_timeout_ms(timeout_ms);
    return made;
  };
  EXPECT_THAT(Join(0, join(2000)), IsEmpty());
  EXPECT_THAT(Join(1, join(1000)), IsEmpty());
  EXPECT_EQ(table_.NextDeadline(), kStart + absl::Seconds(1));
  EXPECT_THAT(Join(2, join(3000)), SizeIs(3));
  EXPECT_EQ(table_.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(table_.Expire(kStart + absl::Hours(1)), IsEmpty());
  // Nor is there one of a group that has failed.
  v1::CollectiveJoin other = JoinOf(2, 1, 2);
  other.set_timeout_ms(1000);
  EXPECT_THAT(Join(0, other), IsEmpty());
  EXPECT_THAT(Join(1, JoinOf(2, 1, 3)), SizeIs(2));
  EXPECT_EQ(table_.NextDeadline(), absl::InfiniteFuture());
}

// Keys are any numbers, and the groups beside it are others'.
TEST_F(GroupTableTest, GroupFails_AllOfItsInstancesEndAndNoOthers) {
  for (const int instance : {-2147483647 - 1, -7, 0, 2147483647}) {
    EXPECT_THAT(Join(0, JoinOf(5, instance, 2)), IsEmpty());
  }
  EXPECT_THAT(Join(0, JoinOf(5, 3, 2)), IsEmpty());
  EXPECT_THAT(Join(1, JoinOf(5, 3, 2)), SizeIs(2)) << "that one is over";
  for (const int group : {4, 6}) EXPECT_THAT(Join(2, JoinOf(group, 0, 2)), IsEmpty());
  const auto answers = Join(1, JoinOf(5, 9, 3));
  ExpectAll(answers, 5, absl::StatusCode::kInternal, "with size 3");
  for (const auto& answer : answers) EXPECT_EQ(answer.group_key, 5);
  EXPECT_EQ(table_.waiting_count(), 2u);
  for (const int group : {4, 6}) EXPECT_THAT(Join(3, JoinOf(group, 0, 2)), SizeIs(2));
}

// The earliest deadline of the members holds, in whatever order they join, with no timeout (0)
// among them.
TEST_F(GroupTableTest, MembersHaveDifferentTimeouts_TheEarliestDeadlineHolds) {
  const std::vector<std::vector<int32_t>> orders = {
      {1000, 5000, 0}, {5000, 1000, 0}, {0, 1000, 5000}, {1000, 0, 5000}};
  for (size_t i = 0; i < orders.size(); ++i) {
    const int instance = static_cast<int>(i);
    for (int device = 0; device < 3; ++device) {
      v1::CollectiveJoin join = JoinOf(1, instance, 4);
      join.set_timeout_ms(orders[i][static_cast<size_t>(device)]);
      EXPECT_THAT(Join(device, join), IsEmpty());
    }
    EXPECT_THAT(table_.Expire(kStart + absl::Milliseconds(999)), IsEmpty()) << i;
    ExpectAll(table_.Expire(kStart + absl::Seconds(1)), 3, absl::StatusCode::kDeadlineExceeded, "");
    EXPECT_EQ(table_.waiting_count(), 0u);
  }
}

}  // namespace
}  // namespace ferry::worker
