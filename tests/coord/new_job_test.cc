// SPDX-License-Identifier: Apache-2.0
// One coordinator that serves one job after the other (CoordinatorOptions::reuse).
#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

// `reuse` needs the register barrier: without it the coordinator cannot tell whether a job is over,
// or has only not seen its other tasks yet.
CoordinatorOptions TogetherOptions(int tasks) {
  CoordinatorOptions options = PlainOptions(tasks);
  options.register_barrier = true;
  options.register_timeout = absl::Minutes(3);
  return options;
}

// The same command line is run again: nothing of the run before may be seen.
TEST(NewJob, BeginsWithAnEmptyStoreWhenAllTasksHaveLeft) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Put("nccl", "old id"), IsOk());
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  EXPECT_FALSE(job.Register(0, 999).done());
  EXPECT_EQ(job.store().key_count(), 0u);
  EXPECT_EQ(job.store().Find("nccl"), std::nullopt);
  EXPECT_EQ(job.coordinator().epoch(), 2);
}

// Clients of the job before must notice that this is another one.
TEST(NewJob, HasAnotherIncarnation) {
  TestJob job(TogetherOptions(1), 77);
  job.RegisterAll();
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_NE(job.coordinator().incarnation(), Incarnation(77));
}

// The values that the old run waits for will never be set.
TEST(NewJob, EndsTheWaitsOfThePreviousJob) {
  TestJob job(TogetherOptions(1));
  job.RegisterAll();
  GetCall get = job.Get({"never"});
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_FALSE(get.done());
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_THAT(get.result(), Fails(absl::StatusCode::kCancelled));
}

// A poll that crossed the shutdown on the wire, and still waits when the next job begins.
TEST(NewJob, EndsThePollOfATaskThatHasLeft) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  const StatusCall poll = job.Poll(0);
  ASSERT_FALSE(poll.done());
  const StatusCall next = job.Register(0, 998);
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kCancelled));
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  const StatusCall next_poll = job.Poll(0);
  EXPECT_FALSE(next_poll.done());
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(next_poll.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_EQ(poll.count(), 1);
}

// A barrier of the old run must not be taken for one that has passed already.
TEST(NewJob, HasFreshBarriers) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "step");
  ASSERT_THAT(job.Barrier(1, "step").result(), IsOk());
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  StatusCall next = job.Register(0, 998);
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  ASSERT_THAT(next.result(), IsOk());
  BarrierCall again = job.Barrier(0, "step");
  EXPECT_FALSE(again.done());
  EXPECT_THAT(job.Barrier(1, "step").result(), IsOk());
  EXPECT_THAT(again.result(), IsOk());
}

// The old run's watchers and the new one's share a table: its version must not run back.
TEST(NewJob, KeepsTheVersionsGrowing) {
  TestJob job(TogetherOptions(1));
  job.RegisterAll();
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  const int64_t version = job.coordinator().membership().version();
  const int64_t revision = job.store().revision();
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_GT(job.coordinator().membership().version(), version);
  EXPECT_GE(job.store().revision(), revision);
}

// The first registration after a failure that was not cleaned up.
TEST(NewJob, FollowsAFailedJobOnceItIsSilent) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(poll.result(), Fails(absl::StatusCode::kInternal));
  job.Advance(kHeartbeatTimeout + absl::Seconds(1));
  StatusCall next = job.Register(1, 999);
  EXPECT_EQ(job.coordinator().epoch(), 2);
  EXPECT_THAT(job.coordinator().job_error(), IsOk());
  EXPECT_THAT(job.Register(0, 998).result(), IsOk());
  EXPECT_THAT(next.result(), IsOk());
}

// Survivors of a failed job still clean up: the store must not be cleared while they do.
TEST(NewJob, DoesNotFollowAFailedJobThatStillBeats) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  job.AdvanceWithHeartbeats(3 * kHeartbeatTimeout, {0});
  EXPECT_THAT(job.Register(1, 999).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.coordinator().epoch(), 1);
}

// All tasks are in error, as their clients do not poll; one of them cleans up.
TEST(NewJob, DoesNotFollowAFailedJobWhileATaskInErrorBeats) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  job.AdvanceWithHeartbeats(3 * kHeartbeatTimeout, {0});
  EXPECT_THAT(job.Register(1, 999).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.coordinator().epoch(), 1);
  // The last of its heartbeats was a quarter of the timeout ago.
  job.Advance(kHeartbeatTimeout * 3 / 4);
  EXPECT_THAT(job.Register(1, 999).result(), Fails(absl::StatusCode::kAborted));
  job.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(job.Register(1, 999).done());
  EXPECT_EQ(job.coordinator().epoch(), 2);
}

// Restart loops try more often than that: an attempt must not make the dead job last longer.
TEST(NewJob, FollowsAFailedJobDespiteRepeatedAttempts) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(job.coordinator().ResetTask(TaskId(1)), IsOk());
  uint64_t life = 500;
  for (absl::Duration passed; passed < kHeartbeatTimeout; passed += kHeartbeatTimeout / 4) {
    EXPECT_THAT(job.Register(0, ++life).result(), Fails(absl::StatusCode::kAborted));
    EXPECT_EQ(job.coordinator().epoch(), 1);
    // The other task is admitted, receives the error and leaves again.
    EXPECT_TRUE(job.Register(1, ++life).done());
    ASSERT_THAT(job.coordinator().ResetTask(TaskId(1)), IsOk());
    job.Advance(kHeartbeatTimeout / 4);
  }
  job.Advance(absl::Seconds(1));
  StatusCall next = job.Register(0, 998);
  EXPECT_EQ(job.coordinator().epoch(), 2);
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_THAT(next.result(), IsOk());
}

// A job whose first connect failed can be started again.
TEST(NewJob, FollowsAFailedConnectOnceItIsSilent) {
  TestJob job(TogetherOptions(2));
  StatusCall first = job.Register(0);
  job.Advance(absl::Minutes(3));
  ASSERT_THAT(first.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  job.Advance(kHeartbeatTimeout + absl::Seconds(1));
  StatusCall again = job.Register(0, 998);
  EXPECT_FALSE(again.done());
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_THAT(again.result(), IsOk());
}

// A launcher publishes settings before the tasks start.
TEST(NewJob, DoesNotBeginWithTheVeryFirstRegistration) {
  TestJob job(TogetherOptions(1));
  ASSERT_THAT(job.Put("settings", "1"), IsOk());
  job.RegisterAll();
  EXPECT_NE(job.store().Find("settings"), std::nullopt);
  EXPECT_EQ(job.coordinator().epoch(), 1);
}

// One task's leaving is not the end of the job.
TEST(NewJob, DoesNotBeginWhileATaskIsConnected) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_NE(job.store().Find("a"), std::nullopt);
  EXPECT_EQ(job.coordinator().epoch(), 1);
}

// A user who runs one coordinator per job may inspect the store afterwards.
TEST(NewJob, NeverBeginsWithoutReuse) {
  CoordinatorOptions options = TogetherOptions(1);
  options.reuse = false;
  TestJob job(options);
  job.RegisterAll();
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_NE(job.store().Find("a"), std::nullopt);
  EXPECT_EQ(job.coordinator().epoch(), 1);
}

// Without the barrier a task that leaves early must not take the others' keys with it.
TEST(NewJob, NeverBeginsWithoutTheRegisterBarrier) {
  TestJob job(PlainOptions(2));
  ASSERT_THAT(job.Register(0).result(), IsOk());
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Register(1).result(), IsOk());
  EXPECT_NE(job.store().Find("a"), std::nullopt);
}

// Without reuse a failed job stays failed, as upstream's does.
TEST(NewJob, DoesNotFollowAFailedJobWithoutReuse) {
  CoordinatorOptions options = TogetherOptions(2);
  options.reuse = false;
  TestJob job(options);
  job.RegisterAll();
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  job.Advance(absl::Hours(1));
  EXPECT_THAT(job.Register(1, 999).result(), Fails(absl::StatusCode::kAborted));
}

// The clients of the next job may only send heartbeats, even if those of this one polled.
TEST(NewJob, NextJobDoesNotPoll_ErrorFailsItsHeartbeats) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  StatusCall next = job.Register(0, 1000 + 500);
  ASSERT_THAT(job.Register(1, 1001 + 500).result(), IsOk());
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Heartbeat(1, 1001 + 500), Fails(absl::StatusCode::kAborted));
}

// The device infos of a task are kept for its job only; a task that sends none has none.
TEST(NewJob, DeviceInfosOfThePreviousJob_AreGone) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  InfosCall first = job.WaitForAll(0, "old 0");
  ASSERT_THAT(job.WaitForAll(1, "old 1").result(), IsOk());
  ASSERT_THAT(first.result(), IsOk());
  StatusCall leaving = job.Shutdown(0);
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  StatusCall next = job.Register(0, 1000 + 500);
  ASSERT_THAT(job.Register(1, 1001 + 500).result(), IsOk());
  InfosCall second = job.WaitForAll(0, "");
  const InfosCall last = job.WaitForAll(1, "new 1");
  ASSERT_THAT(last.result(), IsOk());
  EXPECT_THAT(**last.result(), ::testing::ElementsAre("", "new 1"));
}

// The former process's last message may be slower than its successor's first.
TEST(NewJob, LateLeaveOfAPreviousIncarnation_DoesNotEndRegistration) {
  TestJob job(TogetherOptions(2));
  StatusCall joining = job.Register(0, 1000);
  EXPECT_FALSE(job.coordinator().LeaveTask(TaskId(0), Incarnation(999)).ok());
  job.Drain();
  EXPECT_FALSE(joining.done());
}

// A task that was joining with its own timeout does not belong to the next job.
TEST(NewJob, AfterTheEndOfAJobThatWasJoining_NoTasksOwnTimeoutRemains) {
  TestJob job(TogetherOptions(2));
  Registration impatient;
  impatient.task = TaskId(0);
  impatient.incarnation = Incarnation(LifeOf(0));
  impatient.own_timeout = absl::Seconds(5);
  const StatusCall former = job.Register(impatient);
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/false), IsOk());
  job.Drain();
  ASSERT_THAT(former.result(), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.coordinator().NextDeadline(), absl::InfiniteFuture());
  const StatusCall next = job.Register(0, 2000);
  job.Advance(absl::Seconds(10));
  EXPECT_FALSE(next.done());
  ASSERT_THAT(job.Register(1, 2001).result(), IsOk());
  EXPECT_THAT(next.result(), IsOk());
}

// A task that was notified that a job could not begin does not count for the next one, except for
// the process that waits to report it.
TEST(NewJob, TasksNotifiedOfThePreviousJobsFailure_DoNotCount) {
  TestJob job(TogetherOptions(2));
  const StatusCall told = job.Register(0);
  ASSERT_THAT(job.FailJoining("one").result(), IsOk());
  ASSERT_THAT(told.result(), Fails(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 2u);
  job.Advance(2 * kHeartbeatTimeout);
  const StatusCall failure = job.FailJoining("another");
  EXPECT_FALSE(failure.done());
  ASSERT_THAT(job.Register(1, 2001).result(), Fails(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(job.coordinator().epoch(), 2);
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 2u);
  ASSERT_THAT(job.coordinator().EndJob("by hand", /*force=*/false), IsOk());
  job.Drain();
  EXPECT_EQ(job.coordinator().notified_of_joining_failure(), 0u);
}

// The next job begins, and fails in another way.
TEST(NewJob, ReasonWhyThePreviousJobCouldNotBegin_IsForgotten) {
  CoordinatorOptions options = TogetherOptions(2);
  options.heartbeat_timeout = absl::Hours(1);
  TestJob job(options);
  (void)job.Register(0);
  ASSERT_THAT(job.FailJoining("one").result(), IsOk());
  ASSERT_FALSE(job.coordinator().joining_error().ok());
  job.Advance(absl::Seconds(20) + absl::Milliseconds(1));
  (void)job.Register(0, 2000);
  ASSERT_THAT(job.Register(1, 2001).result(), IsOk());
  EXPECT_THAT(job.coordinator().joining_error(), IsOk());
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Register(1, 3001).result(),
              Fails(absl::StatusCode::kAborted,
                    ::testing::AllOf(::testing::HasSubstr("broken"), ::testing::HasSubstr("1h"))));
}

// A full store of the previous job must not leave the next one without room, and watchers of the
// store are notified that its keys have been removed.
TEST(NewJob, RoomOfThePreviousStore_IsFree) {
  CoordinatorOptions options = TogetherOptions(1);
  options.max_store_bytes = 10;
  TestJob job(options);
  job.RegisterAll();
  ASSERT_THAT(job.Put("a", "12345"), IsOk());
  const int64_t revision = job.store().revision();
  std::vector<std::string> deleted;
  int64_t revision_of_deletion = 0;
  const Store::Watch watch =
      job.store().AddWatch("", /*with_existing=*/false, [&](const StoreEvent& event) {
        if (event.deleted) deleted.push_back(event.entry.key);
        revision_of_deletion = event.entry.revision;
      });
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  ASSERT_THAT(job.Register(0, 2000).result(), IsOk());
  EXPECT_THAT(deleted, ::testing::ElementsAre("a"));
  EXPECT_GT(revision_of_deletion, revision);
  EXPECT_EQ(job.store().stored_bytes(), 0u);
  EXPECT_THAT(job.Put("b", "123456789"), IsOk());
  job.store().RemoveWatch(watch);
}

// All have left, and an incarnation that had been replaced earlier registers again: it belongs to
// this job.
TEST(NewJob, IncarnationThatWasReplacedInThisJob_BeginsNoJob) {
  CoordinatorOptions options = TogetherOptions(1);
  options.recoverable = true;
  TestJob job(options);
  job.RegisterAll();
  ASSERT_THAT(job.Register(0, 55).result(), IsOk());
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(job.Reset(0), IsOk());
  (void)job.Register(0, LifeOf(0));
  EXPECT_EQ(job.coordinator().epoch(), 1);
  EXPECT_NE(job.store().Find("a"), std::nullopt);
}

TEST(NewJob, LastIncarnationThatRegistersAgain_BeginsNoJob) {
  TestJob job(TogetherOptions(1));
  job.RegisterAll();
  ASSERT_THAT(job.Put("a", "1"), IsOk());
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_EQ(job.coordinator().epoch(), 1);
  EXPECT_NE(job.store().Find("a"), std::nullopt);
}

// A coordinator that was not running received nothing from the tasks in error either.
TEST(NewJob, DeadlinesOfAFailedJobAreExtended_WhenTheCoordinatorWasNotRunning) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  job.clock().Advance(2 * kHeartbeatTimeout);
  job.coordinator().ExtendHeartbeatDeadlines(2 * kHeartbeatTimeout);
  EXPECT_THAT(job.Register(0, 2000).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.coordinator().epoch(), 1);
}

// An extension beyond the silence would keep the failed job for as long.
TEST(NewJob, ExtensionBeyondTheSilence_StillBeginsAfterOneTimeout) {
  TestJob job(TogetherOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  job.coordinator().ExtendHeartbeatDeadlines(10 * kHeartbeatTimeout);
  job.Advance(kHeartbeatTimeout + absl::Milliseconds(1));
  const StatusCall next = job.Register(0, 2000);
  EXPECT_EQ(job.coordinator().epoch(), 2);
  EXPECT_FALSE(next.done());
}

}  // namespace
}  // namespace ferry::coord
