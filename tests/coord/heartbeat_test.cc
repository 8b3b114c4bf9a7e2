// SPDX-License-Identifier: Apache-2.0
// Signs of life: what keeps a task alive, and the effects of its silence.
#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::HasSubstr;

TEST(Heartbeat, IsAcceptedFromARegisteredTask) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Heartbeat(0), IsOk());
}

// The coordinator was stopped, or busy for long, and heartbeats wait in its sockets.
TEST(Heartbeat, DeadlinesAreExtendedWhenTheCoordinatorWasNotRunning) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  job.clock().Advance(3 * kHeartbeatTimeout);
  job.coordinator().ExtendHeartbeatDeadlines(3 * kHeartbeatTimeout);
  job.coordinator().Advance();
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  EXPECT_EQ(job.state(1), TaskState::kConnected);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  EXPECT_EQ(job.state(1), TaskState::kError);
}

// A large value on a slow link delays its sender's heartbeats.
TEST(Heartbeat, OtherSignsOfLifeCount) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const Incarnation life = job.task(0).incarnation;
  for (int i = 0; i < 8; ++i) {
    job.AdvanceWithHeartbeats(kHeartbeatTimeout / 4, {1});
    job.coordinator().NoteAlive(TaskId(0), life);
  }
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  for (int i = 0; i < 8; ++i) {
    job.AdvanceWithHeartbeats(kHeartbeatTimeout / 4, {1});
    job.coordinator().NoteAlive(TaskId(0), Incarnation(life.value() + 1));
  }
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// A process of another job sends heartbeats to the wrong address.
TEST(Heartbeat, UnknownTaskIsRefused) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Heartbeat(2, 5), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.Heartbeat(-1, 5), Fails(absl::StatusCode::kInvalidArgument));
}

// A process that was declared dead and replaced.
TEST(Heartbeat, AnotherIncarnationIsAbortedEveryTime) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Heartbeat(0, 999), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Heartbeat(0, 999), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// The others depend on a peer of which two incarnations exist.
TEST(Heartbeat, AnotherIncarnationIsReportedToThePollers) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  EXPECT_THAT(job.Heartbeat(0, 999), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kAborted));
}

// A process that was paused must be notified that it has been declared dead.
TEST(Heartbeat, IsAbortedAfterTheTimeout) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  job.Advance(2 * kHeartbeatTimeout);
  EXPECT_THAT(job.Heartbeat(0), Fails(absl::StatusCode::kAborted));
}

// Old clients do not poll: their own heartbeats notify them.
TEST(Heartbeat, WithoutPollersAllHeartbeatsAreAbortedWhenOneTaskDies) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  job.AdvanceWithHeartbeats(kHeartbeatTimeout * 0.9, {0});
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  job.Advance(kHeartbeatTimeout * 0.2);
  EXPECT_THAT(job.Heartbeat(0), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Heartbeat(1), Fails(absl::StatusCode::kAborted));
}

// New clients poll, and receive the reason.
TEST(Heartbeat, SilenceIsReportedToThePollersAsUnavailable) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall first = job.Poll(0);
  StatusCall second = job.Poll(1);
  job.Advance(2 * kHeartbeatTimeout);
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kUnavailable));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kUnavailable));
}

// The message must name the task, or an operator has to search a thousand logs.
TEST(Heartbeat, TheErrorNamesTheSilentTask) {
  TestJob job(PlainOptions(12));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11});
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kUnavailable, HasSubstr("7")));
  EXPECT_EQ(job.state(7), TaskState::kError);
  EXPECT_EQ(job.state(6), TaskState::kConnected);
}

// They were last heard in another order than that of their numbers.
TEST(Heartbeat, SilentTasks_AreNamedInTheOrderOfTheirNumbers) {
  TestJob job(PlainOptions(3));
  for (const int task : {2, 1, 0}) {
    ASSERT_THAT(job.Register(task).result(), IsOk());
    job.Advance(absl::Milliseconds(100));
  }
  const StatusCall poll = job.Poll(0);
  job.Advance(absl::Seconds(5));
  ASSERT_THAT(job.Heartbeat(0), IsOk());
  job.clock().Advance(kHeartbeatTimeout - absl::Seconds(1));
  job.coordinator().Advance();
  job.Drain();
  EXPECT_THAT(poll.result(),
              Fails(absl::StatusCode::kUnavailable, HasSubstr("tasks 1,2 have been silent")));
  EXPECT_EQ(GetErrorOrigin(poll.result())->source, TaskId(1));
}

// With pollers the survivors keep their own state: they decide themselves.
TEST(Heartbeat, SurvivorIsStillAcceptedWhenErrorsArePolled) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  ASSERT_TRUE(poll.done());
  EXPECT_THAT(job.Heartbeat(0), IsOk());
}

// One tick too early would kill a healthy job.
TEST(Heartbeat, TaskStaysAliveUntilItsTimeout) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  job.Advance(kHeartbeatTimeout - absl::Milliseconds(1));
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  job.Advance(kHeartbeatTimeout - absl::Milliseconds(1));
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  job.Advance(absl::Seconds(1));
  EXPECT_EQ(job.state(0), TaskState::kError);
  EXPECT_THAT(job.task(0).status, Fails(absl::StatusCode::kUnavailable));
}

// The coordinator itself was paused: it must not take its own sleep for its tasks' death at the
// next look if they beat before it.
TEST(Heartbeat, BeatBeforeTheNextCheckSavesTheTask) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  job.clock().Advance(kHeartbeatTimeout / 2);
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  job.clock().Advance(kHeartbeatTimeout * 0.75);
  job.coordinator().Advance();
  job.Drain();
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// A clock that is set back must not kill or immortalise anyone.
TEST(Heartbeat, SurvivesAClockThatJumpsBack) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  job.clock().Advance(-absl::Minutes(30));
  job.coordinator().Advance();
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  job.Advance(kHeartbeatTimeout * 0.9);
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  job.Advance(absl::Hours(1));
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// A heartbeat that crossed the reset on the wire.
TEST(Heartbeat, IsAcceptedOnlyWithinGraceAfterAReset) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(0), IsOk());
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  job.AdvanceWithHeartbeats(3 * kHeartbeatTimeout, {1});
  EXPECT_THAT(job.Heartbeat(0), Fails(absl::StatusCode::kInvalidArgument));
}

// The same after a shutdown.
TEST(Heartbeat, IsAcceptedOnlyWithinGraceAfterAShutdown) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  job.AdvanceWithHeartbeats(3 * kHeartbeatTimeout, {1});
  EXPECT_THAT(job.Heartbeat(0), Fails(absl::StatusCode::kInvalidArgument));
}

// A heartbeat of a task that has left is not a return.
TEST(Heartbeat, WithinGraceDoesNotReconnect) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(0), IsOk());
  ASSERT_THAT(job.Heartbeat(0), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
}

// Two incarnations of a recoverable task: the old one must not keep the new one alive.
TEST(Heartbeat, StaleIncarnationIsAnsweredButDoesNotCountWhenRecoverable) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Register(0, 999).result(), IsOk());
  for (int i = 0; i < 3; ++i) {
    job.Advance(kHeartbeatTimeout * 0.3);
    EXPECT_THAT(job.Heartbeat(0, LifeOf(0)), IsOk());
  }
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  job.Advance(kHeartbeatTimeout * 0.2);
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// A client must not take a coordinator that is stopping for a healthy one.
TEST(Heartbeat, IsInternalAfterTheStop) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  job.Stop();
  EXPECT_THAT(job.Heartbeat(0), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(job.Heartbeat(7, 5), Fails(absl::StatusCode::kInternal));
}

// A rank that beats but does not get on shows in its progress.
TEST(Heartbeat, CarriesTheProgressOfTheTask) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  ASSERT_THAT(job.coordinator().Heartbeat(TaskId(0), Incarnation(LifeOf(0)), 12), IsOk());
  EXPECT_EQ(job.task(0).progress, 12u);
  ASSERT_THAT(job.Heartbeat(0), IsOk());
  EXPECT_EQ(job.task(0).progress, 12u);
}

// The error must be final for clients: without the mark they would retry it.
TEST(Heartbeat, ErrorsAreMarkedAsTheCoordinators) {
  TestJob job(PlainOptions(1));
  EXPECT_TRUE(GetErrorOrigin(job.Heartbeat(0)).has_value());
  EXPECT_TRUE(GetErrorOrigin(job.Heartbeat(5, 5)).has_value());
  job.RegisterAll();
  EXPECT_TRUE(GetErrorOrigin(job.Heartbeat(0, 999)).has_value());
}

// A job that is idle must not wake its executor for nothing, nor forget to.
TEST(Heartbeat, TheNextDeadlineIsWhenATaskCouldRunOut) {
  TestJob job(PlainOptions(1));
  EXPECT_EQ(job.coordinator().NextDeadline(), absl::InfiniteFuture());
  job.RegisterAll();
  EXPECT_GE(job.coordinator().NextDeadline(), job.clock().Now() + kHeartbeatTimeout);
  EXPECT_LE(job.coordinator().NextDeadline(),
            job.clock().Now() + kHeartbeatTimeout + absl::Seconds(1));
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  job.Advance(absl::Minutes(10));
  EXPECT_EQ(job.coordinator().NextDeadline(), absl::InfiniteFuture());
}

// Calls of a task that has left are accepted for one heartbeat timeout, and refused from its end
// on.
TEST(Heartbeat, AtTheEndOfTheGracePeriod_IsInvalidArgument) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  ASSERT_THAT(job.Shutdown(0).result(), IsOk());
  job.Advance(kHeartbeatTimeout - absl::Nanoseconds(1));
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  job.Advance(absl::Nanoseconds(1));
  EXPECT_THAT(job.Heartbeat(0), Fails(absl::StatusCode::kInvalidArgument));
}

// A coordinator that was repeatedly not running would postpone deaths indefinitely.
TEST(Heartbeat, ExtensionBeyondTheSilence_TaskStillDiesAfterOneTimeout) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  job.coordinator().ExtendHeartbeatDeadlines(10 * kHeartbeatTimeout);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  EXPECT_EQ(job.state(1), TaskState::kError);
}

// A task that has left may have a successor already, whose first heartbeat is early: no task is
// notified.
TEST(Heartbeat, AnotherIncarnationWithinGrace_FailsNoTask) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const StatusCall poll = job.Poll(1);
  ASSERT_THAT(job.Reset(0), IsOk());
  EXPECT_THAT(job.Heartbeat(0, 999), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
  EXPECT_FALSE(poll.done());
  EXPECT_THAT(job.coordinator().job_error(), IsOk());
}

}  // namespace
}  // namespace ferry::coord
