// SPDX-License-Identifier: Apache-2.0
// Nodes that a bench lost, and the error about them.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/gone_node.h"

namespace ferry::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

coord::TaskStatus TaskOf(int node, coord::TaskState state, uint64_t incarnation) {
  coord::TaskStatus task;
  task.node_id = node;
  task.state = state;
  task.incarnation = incarnation;
  if (state == coord::TaskState::kError) task.error = absl::UnavailableError("no heartbeat");
  return task;
}

absl::Status Check(const coord::TaskStatus& task) {
  return CheckAllAlive({{1, 11}, {2, 22}}, {TaskOf(1, coord::TaskState::kConnected, 11), task},
                       "measuring part 3");
}

TEST(BenchGoneNode, NamesNodesThatDiedLeftOrRestarted) {
  EXPECT_TRUE(Check(TaskOf(2, coord::TaskState::kConnected, 22)).ok());
  const absl::Status died = Check(TaskOf(2, coord::TaskState::kError, 22));
  EXPECT_EQ(died.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(died.message()),
      AllOf(HasSubstr("node 2 has died while this one was measuring part 3: no heartbeat; "),
            HasSubstr("start the bench again")));
  EXPECT_THAT(std::string(Check(TaskOf(2, coord::TaskState::kDisconnected, 22)).message()),
              HasSubstr("node 2 has left the job"));
  // The bench does not wait for the next incarnation, which does not take part in it.
  EXPECT_THAT(std::string(Check(TaskOf(2, coord::TaskState::kConnected, 23)).message()),
              HasSubstr("node 2 was restarted"));
}

// It may be alive, for example a worker that could not be reached.
TEST(BenchGoneNode, NodeThatReportedAnError_HasNotDied) {
  coord::TaskStatus task = TaskOf(2, coord::TaskState::kError, 22);
  task.error = absl::UnavailableError("/job:w/replica:0/task:2 reported: cannot be reached");
  EXPECT_THAT(std::string(Check(task).message()), HasSubstr("node 2 has failed while"));
}

TEST(BenchGoneNode, IgnoresOtherNodes) {
  EXPECT_TRUE(Check(TaskOf(3, coord::TaskState::kError, 33)).ok());
}

TEST(BenchGoneNode, ListsTheMissing) {
  EXPECT_EQ(MissingNodes({TaskOf(0, coord::TaskState::kConnected, 1),
                          TaskOf(2, coord::TaskState::kDisconnected, 2),
                          TaskOf(5, coord::TaskState::kError, 3)}),
            "; node 2 has left the job; node 5 has died: no heartbeat");
}

}  // namespace
}  // namespace ferry::cli
