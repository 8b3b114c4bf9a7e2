// SPDX-License-Identifier: Apache-2.0
// How tasks join: alone or together, with which incarnation, and which are refused.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"
#include "tests/coord/registration_options.h"

namespace ferry::coord {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// A job that does not wait for its tasks must not delay the first of them.
TEST(Registration, AnswersAtOnceWithoutTheBarrier) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_THAT(job.Register(1).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  EXPECT_EQ(job.state(1), TaskState::kConnected);
}

// The answer was lost and the client asks again.
TEST(Registration, SameIncarnationMayRegisterTwice) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// A retried registration is a sign of life: the time before it must not count as silence.
TEST(Registration, RegisteringAgainRefreshesTheHeartbeat) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  job.Advance(kHeartbeatTimeout * 0.8);
  EXPECT_THAT(job.Register(0).result(), IsOk());
  job.Advance(kHeartbeatTimeout * 0.8);
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// A process restarted unnoticed: its peers hold state of its previous incarnation.
TEST(Registration, AnotherIncarnationOfAConnectedTaskIsAborted) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Register(0, 999).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// The others would wait forever for data of the previous incarnation.
TEST(Registration, AnotherIncarnationOfATaskIsReportedToThePollers) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  EXPECT_FALSE(poll.done());
  EXPECT_THAT(job.Register(0, 999).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kAborted));
}

// A failed task must not rejoin before it is reset.
TEST(Registration, TaskInErrorIsAborted) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Register(0).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Register(0, 999).result(), Fails(absl::StatusCode::kAborted));
}

// A worker with the wrong rank must not fail the job.
TEST(Registration, UnknownTaskIsRefusedWithoutAffectingOthers) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  for (const int unknown : {-1, 2, 1 << 30}) {
    EXPECT_THAT(job.Register(unknown, 5).result(), Fails(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_FALSE(poll.done());
  EXPECT_THAT(job.Heartbeat(0), IsOk());
  EXPECT_THAT(job.Heartbeat(1), IsOk());
}

// A recoverable task that died silently comes back.
TEST(Registration, NewIncarnationMayFollowASilentDeathWhenRecoverable) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  ASSERT_EQ(job.state(1), TaskState::kError);
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_EQ(job.state(1), TaskState::kConnected);
  EXPECT_EQ(job.task(1).incarnation, Incarnation(999));
}

// The answer to the new incarnation was lost.
TEST(Registration, NewIncarnationMayRegisterOnceMore) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_THAT(job.Heartbeat(1, 999), IsOk());
}

// A recoverable task that restarts faster than its silence is noticed.
TEST(Registration, NewIncarnationReplacesAConnectedOneWhenRecoverable) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_EQ(job.task(1).incarnation, Incarnation(999));
  EXPECT_THAT(job.Heartbeat(1, 999), IsOk());
  EXPECT_THAT(job.Heartbeat(0), IsOk());
}

// In a job that is not recoverable, a barrier must not hide a restart.
TEST(Registration, EveryBarrierFailsAfterARestart) {
  TestJob job(TogetherOptions(2));
  StatusCall first = job.Register(0);
  StatusCall second = job.Register(1);
  ASSERT_THAT(first.result(), IsOk());
  ASSERT_THAT(second.result(), IsOk());
  EXPECT_THAT(job.Register(0, 999).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Barrier(1, "later").result(), Fails(absl::StatusCode::kInternal));
}

// The restarted process retries its connection: that must not end the barrier's good result.
TEST(Registration, SameIncarnationMayRegisterAgainAfterTheBarrier) {
  TestJob job(TogetherOptions(2));
  StatusCall first = job.Register(0);
  StatusCall second = job.Register(1);
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// A host that never starts must not block the others forever.
TEST(Registration, BarrierTimesOutWhenATaskNeverRegisters) {
  TestJob job(TogetherOptions(2));
  StatusCall call = job.Register(0);
  job.Advance(kRegisterTimeout - absl::Milliseconds(1));
  EXPECT_FALSE(call.done());
  job.Advance(absl::Milliseconds(1));
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(GetMissingTasks(call.result()), "1");
}

// The log must show the name of the host that did not register.
TEST(Registration, TheTimeoutOfTheBarrierNamesAllThatAreMissing) {
  TestJob job(TogetherOptions(100));
  StatusCall call = job.Register(41);
  job.Advance(kRegisterTimeout);
  ASSERT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("0-40,42-99")));
  EXPECT_EQ(GetMissingTasks(call.result()), "0-40,42-99");
}

// The late host would join a job that its peers have given up. With `reuse` it would begin the next
// one: the tasks that gave up have been silent since they registered.
TEST(Registration, TaskThatRegistersAfterTheTimeoutIsAborted) {
  CoordinatorOptions options = TogetherOptions(2);
  options.reuse = false;
  TestJob job(options);
  StatusCall call = job.Register(0);
  job.Advance(kRegisterTimeout);
  ASSERT_TRUE(call.done());
  EXPECT_THAT(job.Register(1).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.state(0), TaskState::kError);
  EXPECT_EQ(job.state(1), TaskState::kError);
}

// The wait for the others is not silence: no heartbeats are sent before the answer.
TEST(Registration, WaitingForTheOthersIsNotSilence) {
  TestJob job(TogetherOptions(2));
  StatusCall first = job.Register(0);
  job.Advance(kRegisterTimeout / 2);
  ASSERT_FALSE(first.done());
  StatusCall second = job.Register(1);
  EXPECT_THAT(first.result(), IsOk());
  EXPECT_THAT(second.result(), IsOk());
  job.Advance(kHeartbeatTimeout / 2);
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// The coordinator restarted; a process of the previous job still sends heartbeats.
TEST(Registration, OldHeartbeatIsRefusedAndDoesNotHinderRegistration) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.Heartbeat(0, 5), Fails(absl::StatusCode::kInvalidArgument));
  job.RegisterAll();
  EXPECT_THAT(job.Heartbeat(0), IsOk());
}

// The same with the register barrier.
TEST(Registration, OldHeartbeatDoesNotHinderTheBarrier) {
  TestJob job(TogetherOptions(2));
  EXPECT_THAT(job.Heartbeat(0, 5), Fails(absl::StatusCode::kInvalidArgument));
  StatusCall first = job.Register(0);
  EXPECT_THAT(job.Heartbeat(1, 5), Fails(absl::StatusCode::kInvalidArgument));
  StatusCall second = job.Register(1);
  EXPECT_THAT(first.result(), IsOk());
  EXPECT_THAT(second.result(), IsOk());
}

// A rank that starts computing before the others have joined fails in its first send.
TEST(Registration, NoTaskIsAnsweredBeforeAllHaveRegistered) {
  TestJob job(TogetherOptions(3));
  StatusCall first = job.Register(0);
  StatusCall second = job.Register(1);
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  EXPECT_FALSE(job.coordinator().everyone_has_registered());
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
  StatusCall third = job.Register(2);
  for (const StatusCall& call : {first, second, third}) EXPECT_THAT(call.result(), IsOk());
  EXPECT_TRUE(job.coordinator().everyone_has_registered());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(job.state(i), TaskState::kConnected);
}

// Hosts start one after the other.
TEST(Registration, StaggeredTasksAllJoinAndLeave) {
  CoordinatorOptions options = TogetherOptions(5);
  options.shutdown_timeout = absl::Minutes(5);
  TestJob job(options);
  std::vector<StatusCall> calls;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(job.Register(i));
    job.Advance(absl::Milliseconds(200));
  }
  for (int i = 0; i < 5; ++i) {
    calls.push_back(job.Shutdown(i));
    job.Advance(absl::Milliseconds(200));
  }
  for (const StatusCall& call : calls) EXPECT_THAT(call.result(), IsOk());
}

// A process restarts while it waits for the others: its first attempt must not fail them.
TEST(Registration, RestartWhileConnectingReplacesTheStaleAttempt) {
  TestJob job(TogetherOptions(3));
  StatusCall other = job.Register(0);
  StatusCall stale = job.Register(1, 5);
  StatusCall fresh = job.Register(1, 6);
  EXPECT_THAT(stale.result(), Fails(absl::StatusCode::kAlreadyExists));
  EXPECT_FALSE(fresh.done());
  EXPECT_FALSE(other.done());
  StatusCall last = job.Register(2);
  for (const StatusCall& call : {other, fresh, last}) EXPECT_THAT(call.result(), IsOk());
  EXPECT_EQ(job.task(1).incarnation, Incarnation(6));
}

// A client's own retry while the first try still waits.
TEST(Registration, RetryWhileConnectingReplacesTheFirstAttempt) {
  TestJob job(TogetherOptions(2));
  StatusCall first = job.Register(0);
  StatusCall retry = job.Register(0);
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kAlreadyExists));
  StatusCall other = job.Register(1);
  EXPECT_THAT(retry.result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());
}

// A task is recoverable only after it has joined.
TEST(Registration, RecoverableDoesNotRelaxTheFirstConnect) {
  CoordinatorOptions options = TogetherOptions(2);
  options.recoverable = true;
  options.reuse = false;  // With reuse, a late task would begin the next job.
  TestJob job(options);
  StatusCall first = job.Register(0);
  job.Advance(kRegisterTimeout);
  StatusCall late = job.Register(1);
  const auto refused =
      AnyOf(Fails(absl::StatusCode::kDeadlineExceeded), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(first.result(), refused);
  EXPECT_THAT(late.result(), refused);
}

// Reset gives a failed task a second attempt.
TEST(Registration, SameIncarnationMayRegisterAfterAReset) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(0), IsOk());
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// The same from an error.
TEST(Registration, ResetClearsAnError) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(job.Reset(0), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
  EXPECT_THAT(job.task(0).status, IsOk());
  EXPECT_THAT(job.Register(0, 999).result(), IsOk());
}

// Clients compare the coordinator's incarnation with each heartbeat's answer.
TEST(Registration, CoordinatorKeepsItsIncarnationWhileTheJobLasts) {
  TestJob job(PlainOptions(2), 4711);
  EXPECT_EQ(job.coordinator().incarnation(), Incarnation(4711));
  job.RegisterAll();
  job.AdvanceWithHeartbeats(absl::Minutes(1), {0, 1});
  EXPECT_EQ(job.coordinator().incarnation(), Incarnation(4711));
  TestJob restarted(PlainOptions(2), 4712);
  EXPECT_NE(restarted.coordinator().incarnation(), job.coordinator().incarnation());
}

// The others waited only briefly.
TEST(Registration, TaskThatRegistersSoonAfterTheTimeoutIsAbortedEvenWithReuse) {
  CoordinatorOptions options = TogetherOptions(2);
  options.register_timeout = kHeartbeatTimeout / 2;
  TestJob job(options);
  StatusCall call = job.Register(0);
  job.Advance(options.register_timeout);
  ASSERT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(job.Register(1).result(), Fails(absl::StatusCode::kAborted));
}

// Clients of the coordination service may wait at any barrier: one that waits at the coordinator's
// own takes the place of a task, and the others join at once.
TEST(Registration, BarrierCallThatCompletesTheRegisterBarrier_ConnectsThoseThatWait) {
  TestJob job(TogetherOptions(2));
  const StatusCall waiting = job.Register(0);
  ASSERT_THAT(job.Barrier(1, std::string(Coordinator::RegisterBarrierId())).result(), IsOk());
  EXPECT_THAT(waiting.result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  EXPECT_THAT(job.Heartbeat(0), IsOk());
}

// The same with a call that fails the barrier.
TEST(Registration, BarrierCallThatFailsTheRegisterBarrier_FailsTheJobAtOnce) {
  for (const bool by_cancelling : {false, true}) {
    TestJob job(TogetherOptions(2));
    const StatusCall waiting = job.Register(0);
    const std::string id(Coordinator::RegisterBarrierId());
    if (by_cancelling) {
      ASSERT_THAT(job.CancelBarrier(id), IsOk());
    } else {
      ASSERT_THAT(job.Barrier(1, id, 0, {1}).result(), Fails(absl::StatusCode::kInvalidArgument));
    }
    EXPECT_FALSE(waiting.result().ok());
    EXPECT_EQ(job.state(0), TaskState::kError);
  }
}

// A job that fails to name its parts must not start.
TEST(Registration, ACoordinatorWithoutTasksIsRefused) {
  FakeClock clock;
  EXPECT_THAT(Coordinator::Create(PlainOptions(0), clock, 1),
              Fails(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace ferry::coord
