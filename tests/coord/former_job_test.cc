// SPDX-License-Identifier: Apache-2.0
// Late calls of an earlier job, and ending a job by hand.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "coord/core/former_incarnations.h"
#include "tests/coord/coordinator_fixture.h"
#include "tests/topology/topology_test_util.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CoordinatorOptions DaemonOptions(int tasks) {
  CoordinatorOptions options = PlainOptions(tasks);
  options.register_barrier = true;
  options.register_timeout = absl::Minutes(3);
  return options;
}

// The incarnations of job `job`, from 1.
uint64_t LifeIn(int job, int task) { return 1000 * static_cast<uint64_t>(job) + 1 + task; }

void JoinAll(TestJob& job, int number) {
  std::vector<StatusCall> calls;
  for (int i = 0; i < job.coordinator().jobs().size(); ++i) {
    calls.push_back(job.Register(i, LifeIn(number, i)));
  }
  for (const StatusCall& call : calls) ASSERT_THAT(call.result(), IsOk());
}

void LeaveAll(TestJob& job) {
  for (int i = 0; i < job.coordinator().jobs().size(); ++i) ASSERT_THAT(job.Reset(i), IsOk());
}

void ExpectWell(TestJob& job, int number) {
  for (int i = 0; i < job.coordinator().jobs().size(); ++i) {
    EXPECT_EQ(job.state(i), TaskState::kConnected) << i;
    EXPECT_THAT(job.Heartbeat(i, LifeIn(number, i)), IsOk()) << i;
  }
  EXPECT_THAT(job.coordinator().job_error(), IsOk());
  EXPECT_EQ(job.coordinator().epoch(), number);
}

// A process that was stopped resumes when the next job has begun.
TEST(FormerJob, LateHeartbeat_IsAbortedWithoutEffect) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  LeaveAll(job);
  JoinAll(job, 2);
  StatusCall poll = job.Poll(1);
  EXPECT_THAT(job.Heartbeat(0, LifeIn(1, 0)),
              Fails(absl::StatusCode::kAborted,
                    AllOf(HasSubstr("part of job 1"), HasSubstr("this is job 2"))));
  EXPECT_FALSE(poll.done());
  ExpectWell(job, 2);
}

TEST(FormerJob, LateRegistration_IsAbortedWithoutEffect) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  LeaveAll(job);
  JoinAll(job, 2);
  EXPECT_THAT(job.Register(0, LifeIn(1, 0)).result(), Fails(absl::StatusCode::kAborted));
  ExpectWell(job, 2);
}

// It registers while the new job's tasks are still joining, and must not replace one of them.
TEST(FormerJob, LateRegistrationWhileTheNextJobJoins_DoesNotJoinIt) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  LeaveAll(job);
  StatusCall waits = job.Register(1, LifeIn(2, 1));
  EXPECT_THAT(job.Register(0, LifeIn(1, 0)).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Register(1, LifeIn(1, 1)).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_FALSE(waits.done());
  EXPECT_THAT(job.Register(0, LifeIn(2, 0)).result(), IsOk());
  EXPECT_THAT(waits.result(), IsOk());
  ExpectWell(job, 2);
}

// A task of the new job is in error or gone; heartbeats of the earlier process do not count for it.
TEST(FormerJob, LateHeartbeats_DoNotKeepAFailedJobAlive) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  LeaveAll(job);
  JoinAll(job, 2);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(job.Reset(1), IsOk());
  for (int i = 0; i < 5; ++i) {
    job.Advance(kHeartbeatTimeout / 4);
    EXPECT_THAT(job.Heartbeat(0, LifeIn(1, 0)), Fails(absl::StatusCode::kAborted));
  }
  EXPECT_FALSE(job.Register(0, LifeIn(3, 0)).done());
  EXPECT_EQ(job.coordinator().epoch(), 3);
}

// A recoverable job answers OK to a former incarnation of its own, but not to one of another job.
TEST(FormerJob, LateHeartbeatInARecoverableJob_IsAborted) {
  CoordinatorOptions options = DaemonOptions(1);
  options.recoverable = true;
  TestJob job(options);
  JoinAll(job, 1);
  LeaveAll(job);
  JoinAll(job, 2);
  EXPECT_THAT(job.Heartbeat(0, LifeIn(1, 0)), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Register(0, LifeIn(1, 0)).result(), Fails(absl::StatusCode::kAborted));
  ExpectWell(job, 2);
}

// An incarnation that was replaced within its job belonged to that job, too.
TEST(FormerJob, IncarnationThatWasReplaced_IsKnownInTheNextJob) {
  CoordinatorOptions options = DaemonOptions(1);
  options.recoverable = true;
  TestJob job(options);
  JoinAll(job, 1);
  ASSERT_THAT(job.Register(0, 55).result(), IsOk());
  EXPECT_THAT(job.Heartbeat(0, LifeIn(1, 0)), IsOk());
  LeaveAll(job);
  // It does not begin a job either.
  EXPECT_EQ(job.coordinator().epoch(), 1);
  JoinAll(job, 2);
  EXPECT_THAT(job.Heartbeat(0, LifeIn(1, 0)), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Heartbeat(0, 55), Fails(absl::StatusCode::kAborted));
  ExpectWell(job, 2);
}

// A client that could not join the failed job tries again with the same incarnation, and may.
TEST(FormerJob, ProcessThatNeverJoined_MayJoinTheNext) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(job.Reset(1), IsOk());
  EXPECT_THAT(job.Register(0, LifeIn(2, 0)).result(), Fails(absl::StatusCode::kAborted));
  job.Advance(2 * kHeartbeatTimeout);
  StatusCall again = job.Register(0, LifeIn(2, 0));
  EXPECT_FALSE(again.done());
  EXPECT_THAT(job.Register(1, LifeIn(2, 1)).result(), IsOk());
  EXPECT_THAT(again.result(), IsOk());
}

TEST(FormerJob, ManyJobs_AreAllKnown) {
  TestJob job(DaemonOptions(3));
  for (int number = 1; number <= 20; ++number) {
    JoinAll(job, number);
    LeaveAll(job);
  }
  JoinAll(job, 21);
  for (int number = 1; number <= 20; ++number) {
    for (int task = 0; task < 3; ++task) {
      EXPECT_THAT(job.Heartbeat(task, LifeIn(number, task)), Fails(absl::StatusCode::kAborted));
      EXPECT_THAT(
          job.coordinator().CheckIncarnation(TaskId(task), Incarnation(LifeIn(number, task))),
          Fails(absl::StatusCode::kAborted, HasSubstr("of this coordinator")));
    }
  }
  ExpectWell(job, 21);
}

TEST(FormerJob, IncarnationOfAnotherTask_IsNotKnown) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  LeaveAll(job);
  JoinAll(job, 2);
  EXPECT_THAT(job.coordinator().CheckIncarnation(TaskId(1), Incarnation(LifeIn(1, 0))), IsOk());
  EXPECT_THAT(job.coordinator().CheckIncarnation(TaskId(0), Incarnation(LifeIn(2, 0))), IsOk());
}

TEST(FormerIncarnations, TheOldestAreForgotten) {
  FormerIncarnations lives(4);
  for (uint64_t i = 1; i <= FormerIncarnations::kMaxIncarnations + 10; ++i) {
    lives.Add(TaskId(0), Incarnation(i), static_cast<int64_t>(i));
  }
  EXPECT_EQ(lives.size(), FormerIncarnations::kMaxIncarnations);
  EXPECT_EQ(lives.EpochOf(TaskId(0), Incarnation(10)), 0);
  EXPECT_EQ(lives.EpochOf(TaskId(0), Incarnation(11)), 11);
  EXPECT_EQ(lives.EpochOf(TaskId(0), Incarnation(FormerIncarnations::kMaxIncarnations + 10)),
            static_cast<int64_t>(FormerIncarnations::kMaxIncarnations) + 10);
}

TEST(FormerIncarnations, ALargeJob_IsRememberedAsAWhole) {
  constexpr int kTasks = static_cast<int>(FormerIncarnations::kMaxIncarnations) + 5;
  FormerIncarnations lives(kTasks);
  for (int job = 1; job <= 3; ++job) {
    for (int i = 0; i < kTasks; ++i) lives.Add(TaskId(i), Incarnation(job), job);
  }
  EXPECT_EQ(lives.size(), 2u * kTasks);
  EXPECT_EQ(lives.EpochOf(TaskId(0), Incarnation(1)), 0);
  EXPECT_EQ(lives.EpochOf(TaskId(0), Incarnation(2)), 2);
  EXPECT_EQ(lives.EpochOf(TaskId(kTasks - 1), Incarnation(3)), 3);
}

// A client without an incarnation would be refused forever.
TEST(FormerIncarnations, NoIncarnation_IsNotRemembered) {
  FormerIncarnations lives(1);
  lives.Add(TaskId(0), Incarnation(), 1);
  EXPECT_EQ(lives.EpochOf(TaskId(0), Incarnation()), 0);
  EXPECT_EQ(lives.size(), 0u);
}

// A remaining process keeps a failed job alive: it is ended by hand, and the next one begins at
// once.
TEST(EndJob, OfAFailedJob_LetsTheNextOneBegin) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  StatusCall late = job.Register(1, 99);
  ASSERT_TRUE(late.done());
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/false), IsOk());
  job.Drain();
  EXPECT_EQ(job.store().key_count(), 0u);
  EXPECT_THAT(job.Heartbeat(0, LifeIn(1, 0)), Fails(absl::StatusCode::kAborted));
  JoinAll(job, 2);
  ExpectWell(job, 2);
}

TEST(EndJob, OfAHealthyJob_NeedsForce) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  StatusCall poll = job.Poll(0);
  EXPECT_THAT(job.coordinator().EndJob("by hand", /*force=*/false),
              Fails(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr("2 of 2"), HasSubstr("--force"))));
  job.Drain();
  EXPECT_FALSE(poll.done());
  ExpectWell(job, 1);
}

// All pending calls end with the reason, and later calls of the job's processes are refused.
TEST(EndJob, EndsWhatWaitsWithTheReason) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  StatusCall poll = job.Poll(0);
  GetCall get = job.Get({"never"});
  BarrierCall barrier = job.Barrier(0, "step");
  AliveCall alive = job.Alive(0, {0, 1});
  LocalTopology local;
  EnumerateCall devices = job.Enumerate(0, local);
  ASSERT_THAT(job.coordinator().EndJob("maintenance", /*force=*/true), IsOk());
  job.Drain();
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kAborted, HasSubstr("maintenance")));
  EXPECT_THAT(get.result(), Fails(absl::StatusCode::kAborted, HasSubstr("maintenance")));
  EXPECT_THAT(barrier.result(), Fails(absl::StatusCode::kAborted, HasSubstr("maintenance")));
  EXPECT_THAT(alive.result(), Fails(absl::StatusCode::kAborted, HasSubstr("maintenance")));
  EXPECT_THAT(devices.result(), Fails(absl::StatusCode::kAborted, HasSubstr("maintenance")));
  EXPECT_EQ(job.coordinator().wait_count(), 0u);
  EXPECT_THAT(job.Heartbeat(1, LifeIn(1, 1)), Fails(absl::StatusCode::kAborted));
  JoinAll(job, 2);
  ExpectWell(job, 2);
}

// The tasks of a recoverable job are not sent the error, but their calls end nonetheless, and
// nothing of them is left for the next job.
TEST(EndJob, OfARecoverableJob_EndsWhatWaits) {
  CoordinatorOptions options = DaemonOptions(2);
  options.recoverable = true;
  TestJob job(options);
  JoinAll(job, 1);
  const StatusCall poll = job.Poll(0);
  const EnumerateCall devices = job.Enumerate(0, TestNode(0));
  ASSERT_THAT(job.coordinator().EndJob("maintenance", /*force=*/true), IsOk());
  job.Drain();
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kAborted, HasSubstr("maintenance")));
  EXPECT_THAT(devices.result(), Fails(absl::StatusCode::kAborted, HasSubstr("maintenance")));
  EXPECT_EQ(job.coordinator().wait_count(), 0u);
  EXPECT_EQ(job.coordinator().InnerTableSizes()["topology.nodes"], 0u);
  JoinAll(job, 2);
  const StatusCall next_poll = job.Poll(0);
  EXPECT_FALSE(next_poll.done());
  EXPECT_EQ(poll.count(), 1);
  ExpectWell(job, 2);
}

// The devices of the job that has ended are not those of the next.
TEST(EndJob, ACompleteTopology_IsForgotten) {
  TestJob job(DaemonOptions(1));
  JoinAll(job, 1);
  ASSERT_THAT(job.Enumerate(0, TestNode(0)).result(), IsOk());
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/true), IsOk());
  job.Drain();
  EXPECT_EQ(job.coordinator().topology(), nullptr);
}

// Nothing else changes the table until the next job's tasks register.
TEST(EndJob, WatchersOfTheTasks_AreNotifiedAtOnce) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  const int64_t version = job.coordinator().membership().version();
  const TableCall watch = job.WatchTasks(version);
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/true), IsOk());
  job.Drain();
  ASSERT_THAT(watch.result(), IsOk());
  for (const TaskInfo& info : watch.result()->tasks) {
    EXPECT_EQ(info.state, TaskState::kDisconnected);
    // Watchers that ask only for what has changed receive it too.
    EXPECT_GT(info.version, version);
  }
  EXPECT_EQ(watch.result()->version, job.coordinator().membership().version());
  // Nobody's heartbeats are awaited.
  EXPECT_EQ(job.coordinator().NextDeadline(), absl::InfiniteFuture());
}

// The barrier at which the first job's tasks shut down does not belong to the next job.
TEST(EndJob, WhileItShutsDown_LeavesTheNextOneHealthy) {
  CoordinatorOptions options = DaemonOptions(2);
  options.shutdown_timeout = absl::Minutes(1);
  TestJob job(options);
  JoinAll(job, 1);
  const StatusCall leaving = job.Shutdown(0);
  ASSERT_FALSE(leaving.done());
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/true), IsOk());
  job.Drain();
  EXPECT_THAT(leaving.result(), Fails(absl::StatusCode::kInternal, HasSubstr("by hand")));
  JoinAll(job, 2);
  ExpectWell(job, 2);
}

// A task that waits to join gets the error, and may register again: it was never part of the job.
TEST(EndJob, OfAJobThatIsJoining_LetsItsTasksRegisterAgain) {
  TestJob job(DaemonOptions(2));
  StatusCall waits = job.Register(0, LifeIn(2, 0));
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/false), IsOk());
  job.Drain();
  EXPECT_THAT(waits.result(), Fails(absl::StatusCode::kAborted));
  JoinAll(job, 2);
  ExpectWell(job, 2);
}

TEST(EndJob, AfterTheStop_IsInternal) {
  TestJob job(DaemonOptions(1));
  job.Stop();
  EXPECT_THAT(job.coordinator().EndJob("late", /*force=*/true), Fails(absl::StatusCode::kInternal));
}

TEST(FormerIncarnations, AddedAgain_BelongsToTheLastJobAndCountsOnce) {
  FormerIncarnations lives(1);
  lives.Add(TaskId(0), Incarnation(5), 1);
  lives.Add(TaskId(0), Incarnation(5), 3);
  EXPECT_EQ(lives.EpochOf(TaskId(0), Incarnation(5)), 3);
  EXPECT_EQ(lives.size(), 1u);
}

// The failed task has left, and no task is in error; but the job has failed.
TEST(EndJob, FailedTaskHasLeft_NeedsNoForce) {
  TestJob job(DaemonOptions(2));
  JoinAll(job, 1);
  const StatusCall poll = job.Poll(1);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(job.Reset(0), IsOk());
  ASSERT_EQ(job.coordinator().membership().error_count(), 0);
  EXPECT_THAT(job.coordinator().EndJob("by hand", /*force=*/false), IsOk());
  job.Drain();
  JoinAll(job, 2);
  ExpectWell(job, 2);
}

// The tasks of a recoverable job are not notified of the failure of a task, which nonetheless makes
// the job unhealthy.
TEST(EndJob, OfARecoverableJobWithATaskInError_NeedsNoForce) {
  CoordinatorOptions options = DaemonOptions(2);
  options.recoverable = true;
  TestJob job(options);
  JoinAll(job, 1);
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(job.coordinator().job_error(), IsOk());
  EXPECT_THAT(job.coordinator().EndJob("by hand", /*force=*/false), IsOk());
  job.Drain();
  EXPECT_EQ(job.coordinator().epoch(), 2);
}

// Tasks that do not poll are notified through their own service; those of a job that has not begun
// have none.
TEST(EndJob, CallsTasksWithAnErrorAddress) {
  TestJob job(DaemonOptions(1));
  std::vector<std::string> called;
  job.coordinator().SetErrorReport(
      [&](const std::string& address, const absl::Status&) { called.push_back(address); });
  Registration registration;
  registration.task = TaskId(0);
  registration.incarnation = Incarnation(LifeIn(1, 0));
  registration.facts.error_address = "host:1";
  ASSERT_THAT(job.Register(registration).result(), IsOk());
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/true), IsOk());
  job.Drain();
  EXPECT_THAT(called, ::testing::ElementsAre("host:1"));
  ASSERT_THAT(job.coordinator().EndJob("again", /*force=*/true), IsOk());
  job.Drain();
  EXPECT_EQ(called.size(), 1u);
}

}  // namespace
}  // namespace ferry::coord
