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

// Building a communicator needs the incarnation of every task.
TEST(TaskWatch, AnswersAtOnceWithoutAVersion) {
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

// A communicator with a task that left must be recognised as stale.
TEST(TaskWatch, ShowsATaskThatWasResetWithItsLastIncarnation) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(1), IsOk());
  const TableCall call = job.WatchTasks(-1);
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(call.result()->tasks[1].state, TaskState::kDisconnected);
  EXPECT_EQ(call.result()->tasks[1].incarnation, Incarnation(LifeOf(1)));
  EXPECT_GE(call.result()->version, 0);
}

// The successor must not be taken for its predecessor.
TEST(TaskWatch, ShowsTheNewIncarnationOfATask) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(1), IsOk());
  ASSERT_THAT(job.Register(1, LifeOf(1) + 1).result(), IsOk());
  const TableCall call = job.WatchTasks(-1);
  ASSERT_THAT(call.result(), IsOk());
  EXPECT_EQ(call.result()->tasks[1].state, TaskState::kConnected);
  EXPECT_EQ(call.result()->tasks[1].incarnation, Incarnation(LifeOf(1) + 1));
}

// A watch that answers without a change would be polled in a loop.
TEST(TaskWatch, WaitsUntilTheTableChanges) {
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
TEST(TaskWatch, WakesForRegistrationErrorSilenceAndANewIncarnation) {
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

// A slow watcher must not receive history.
TEST(TaskWatch, ShowsOnlyTheLatestState) {
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

// A client of a previous coordinator. Ferry refuses the version; upstream's server crashes on it.
TEST(TaskWatch, VersionInTheFutureIsRefused) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const int64_t version = job.coordinator().membership().version();
  EXPECT_THAT(job.WatchTasks(version + 1).result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.WatchTasks(INT64_MAX).result(), Fails(absl::StatusCode::kInvalidArgument));
}

// The coordinator stops while a watch is pending.
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

// A client that has the table needs only the changes.
TEST(TaskWatch, ShowsWhenEachTaskChanged) {
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
