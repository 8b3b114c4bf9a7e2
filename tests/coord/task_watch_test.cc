// SPDX-License-Identifier: Apache-2.0
// Watching the table of tasks.
#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Scenario 49. Whoever builds a clique needs every task's life.
TEST(TaskWatch, Scenario49AnswersAtOnceWithoutAVersion) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const TableCall call = job.WatchTasks(-1);
  ASSERT_THAT(call.result(), IsOk());
  ASSERT_THAT(call.result()->tasks, SizeIs(2));
  for (int i = 0; i < 2; ++i) {
    const TaskInfo& info = call.result()->tasks[i];
    EXPECT_EQ(info.task, TaskId(i));
    EXPECT_EQ(info.state, TaskState::kConnected);
    EXPECT_EQ(info.incarnation, Incarnation(LifeOf(i)));
  }
  EXPECT_EQ(call.result()->version, job.coordinator().membership().version());
}

// Scenario 50. A clique with a task that left must be seen as stale.
TEST(TaskWatch, Scenario50ShowsATaskThatWasResetWithItsLastLife) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(1), IsOk());
  const TableCall call = job.WatchTasks(-1);
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(call.result()->tasks[1].state, TaskState::kDisconnected);
  EXPECT_EQ(call.result()->tasks[1].incarnation, Incarnation(LifeOf(1)));
  EXPECT_GE(call.result()->version, 0);
}

// Scenario 51. The successor must not be taken for its predecessor.
TEST(TaskWatch, Scenario51ShowsTheNewLifeOfATask) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(1), IsOk());
  ASSERT_THAT(job.Register(1, LifeOf(1) + 1).result(), IsOk());
  const TableCall call = job.WatchTasks(-1);
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(call.result()->tasks[1].state, TaskState::kConnected);
  EXPECT_EQ(call.result()->tasks[1].incarnation, Incarnation(LifeOf(1) + 1));
}

// Scenario 52. A watch that answers without a change would be polled in a loop.
TEST(TaskWatch, Scenario52WaitsUntilTheTableChanges) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const int64_t version = job.WatchTasks(-1).result()->version;
  const TableCall call = job.WatchTasks(version);
  job.Advance(absl::Seconds(1));
  EXPECT_FALSE(call.done());
  ASSERT_THAT(job.Reset(1), IsOk());
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_GT(call.result()->version, version);
  EXPECT_EQ(call.result()->tasks[1].state, TaskState::kDisconnected);
}

// Every kind of change must wake the watchers; one that does not would leave a stale clique alive.
TEST(TaskWatch, WakesForRegistrationErrorSilenceAndANewLife) {
  TestJob job(RecoverableOptions(3));
  const auto watch = [&job] { return job.WatchTasks(job.coordinator().membership().version()); };
  TableCall call = watch();
  ASSERT_FALSE(call.done());
  job.RegisterAll();
  EXPECT_EQ(call.result()->tasks[0].state, TaskState::kConnected);
  call = watch();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_EQ(call.result()->tasks[0].state, TaskState::kError);
  EXPECT_THAT(call.result()->tasks[0].status, Fails(absl::StatusCode::kInternal));
  call = watch();
  ASSERT_THAT(job.Register(2, 999).result(), IsOk());
  EXPECT_EQ(call.result()->tasks[2].incarnation, Incarnation(999));
  call = watch();
  job.Advance(2 * kHeartbeatTimeout);
  EXPECT_EQ(call.result()->tasks[1].state, TaskState::kError);
}

// A heartbeat is no change: with 10,000 tasks each would send the whole table to all.
TEST(TaskWatch, DoesNotWakeForHeartbeats) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const TableCall call = job.WatchTasks(job.coordinator().membership().version());
  ASSERT_THAT(job.Heartbeat(0), IsOk());
  (void)job.Heartbeat(7, 1);
  EXPECT_FALSE(call.done());
}

// Scenario 53. A slow watcher must not be fed history.
TEST(TaskWatch, Scenario53ShowsOnlyTheLatestState) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const int64_t version = job.coordinator().membership().version();
  ASSERT_THAT(job.Reset(1), IsOk());
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  const TableCall call = job.WatchTasks(version);
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(call.result()->tasks[1].state, TaskState::kConnected);
  EXPECT_EQ(call.result()->tasks[1].incarnation, Incarnation(999));
  EXPECT_GE(call.result()->version, version + 2);
}

// Scenario 55, as ours. A client of the coordinator's former life; upstream's server dies of it.
TEST(TaskWatch, Scenario55AVersionThatHasNotBeenIsRefused) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const int64_t version = job.coordinator().membership().version();
  EXPECT_THAT(job.WatchTasks(version + 1).result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.WatchTasks(INT64_MAX).result(), Fails(absl::StatusCode::kInvalidArgument));
}

// The coordinator goes down while somebody watches.
TEST(TaskWatch, EndsWithAnEmptyTableWhenTheServiceStops) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const TableCall call = job.WatchTasks(job.coordinator().membership().version());
  job.Stop();
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(call.result()->version, -1);
  EXPECT_THAT(call.result()->tasks, IsEmpty());
  EXPECT_THAT(job.WatchTasks(-1).result(), Fails(absl::StatusCode::kInternal));
}

// Who has the table wants only what is new.
TEST(TaskWatch, SaysWhenEachTaskChanged) {
  TestJob job(PlainOptions(3));
  const TableCall before = job.WatchTasks(-1);
  for (const TaskInfo& info : before.result()->tasks) EXPECT_EQ(info.version, 0);
  job.RegisterAll();
  const int64_t version = job.WatchTasks(-1).result()->version;
  const TableCall call = job.WatchTasks(version);
  ASSERT_THAT(job.Reset(1), IsOk());
  ASSERT_THAT(call.result(), IsOk());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(call.result()->tasks[i].version > version, i == 1) << i;
    EXPECT_LE(call.result()->tasks[i].version, call.result()->version);
  }
}

// Each GPU client watches: one answer must not use up the others'.
TEST(TaskWatch, ManyWatchersAreAllAnswered) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const int64_t version = job.coordinator().membership().version();
  std::vector<TableCall> calls;
  for (int i = 0; i < 10; ++i) calls.push_back(job.WatchTasks(version, i % 2));
  ASSERT_THAT(job.Reset(0), IsOk());
  for (const TableCall& call : calls) EXPECT_EQ(call.count(), 1);
}

// The watcher went away.
TEST(TaskWatch, CanBeCancelled) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const TableCall call = job.WatchTasks(job.coordinator().membership().version());
  EXPECT_TRUE(job.Cancel(call.wait()));
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(job.Cancel(call.wait()));
  ASSERT_THAT(job.Reset(0), IsOk());
  EXPECT_EQ(call.count(), 1);
}

}  // namespace
}  // namespace ferry::coord
