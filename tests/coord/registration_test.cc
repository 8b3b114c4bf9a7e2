// SPDX-License-Identifier: Apache-2.0
// How tasks join: at once or together, in which life, and who is turned away.
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

// Scenario 1. A job that does not wait for its tasks must not hold up the first of them.
TEST(Registration, Scenario1AnswersAtOnceWithoutTheBarrier) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_THAT(job.Register(1).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  EXPECT_EQ(job.state(1), TaskState::kConnected);
}

// Scenario 2. The answer was lost and the client asks again.
TEST(Registration, Scenario2TheSameLifeMayRegisterTwice) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// A retried registration is a sign of life: the task must not die of the time before it.
TEST(Registration, RegisteringAgainRefreshesTheHeartbeat) {
  TestJob job(PlainOptions(1));
  job.RegisterAll();
  job.Advance(kHeartbeatTimeout * 0.8);
  EXPECT_THAT(job.Register(0).result(), IsOk());
  job.Advance(kHeartbeatTimeout * 0.8);
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// Scenario 3. A process restarted behind the job's back: its peers hold state of its former life.
TEST(Registration, Scenario3AnotherLifeOfAConnectedTaskIsAborted) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Register(0, 999).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_EQ(job.state(0), TaskState::kError);
}

// Scenario 4. The others would wait for ever for what the former life was to send.
TEST(Registration, Scenario4AnotherLifeOfATaskIsToldToThePollers) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  EXPECT_FALSE(poll.done());
  EXPECT_THAT(job.Register(0, 999).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kAborted));
}

// Scenario 5. A failed task must not slip back in before somebody resets it.
TEST(Registration, Scenario5ATaskInErrorIsAborted) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Register(0).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Register(0, 999).result(), Fails(absl::StatusCode::kAborted));
}

// Scenario 6. A worker with the wrong rank must not take the job down.
TEST(Registration, Scenario6AnUnknownTaskIsRefusedAndNobodyElseIsAffected) {
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

// Scenario 7 (not in the list, implied by 8): a recoverable task that died silently comes back.
TEST(Registration, Scenario7ANewLifeFollowsASilentDeathWhenRecoverable) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  ASSERT_EQ(job.state(1), TaskState::kError);
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_EQ(job.state(1), TaskState::kConnected);
  EXPECT_EQ(job.task(1).incarnation, Incarnation(999));
}

// Scenario 8. The answer of 7 was lost.
TEST(Registration, Scenario8TheNewLifeMayRegisterOnceMore) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_THAT(job.Heartbeat(1, 999), IsOk());
}

// A recoverable task that restarts faster than its silence is noticed.
TEST(Registration, ANewLifeReplacesAConnectedOneWhenRecoverable) {
  TestJob job(RecoverableOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Register(1, 999).result(), IsOk());
  EXPECT_EQ(job.task(1).incarnation, Incarnation(999));
  EXPECT_THAT(job.Heartbeat(1, 999), IsOk());
  EXPECT_THAT(job.Heartbeat(0), IsOk());
}

// Scenario 9. A restart in a job that is not recoverable must not be papered over by a barrier.
TEST(Registration, Scenario9AfterARestartEveryBarrierFails) {
  TestJob job(TogetherOptions(2));
  StatusCall first = job.Register(0);
  StatusCall second = job.Register(1);
  ASSERT_THAT(first.result(), IsOk());
  ASSERT_THAT(second.result(), IsOk());
  EXPECT_THAT(job.Register(0, 999).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Barrier(1, "later").result(), Fails(absl::StatusCode::kInternal));
}

// The restarted process retries its connection: that must not end the barrier's good result.
TEST(Registration, TheSameLifeMayRegisterAgainAfterTheBarrier) {
  TestJob job(TogetherOptions(2));
  StatusCall first = job.Register(0);
  StatusCall second = job.Register(1);
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// Scenario 10. A host that never starts must not hold the others for ever.
TEST(Registration, Scenario10TheBarrierTimesOutWhenATaskNeverComes) {
  TestJob job(TogetherOptions(2));
  StatusCall call = job.Register(0);
  job.Advance(kRegisterTimeout - absl::Milliseconds(1));
  EXPECT_FALSE(call.done());
  job.Advance(absl::Milliseconds(1));
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(GetMissingTasks(call.result()), "1");
}

// Whoever looks at the log wants the name of the host that did not come.
TEST(Registration, TheTimeoutOfTheBarrierNamesAllThatAreMissing) {
  TestJob job(TogetherOptions(100));
  StatusCall call = job.Register(41);
  job.Advance(kRegisterTimeout);
  ASSERT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("0-40,42-99")));
  EXPECT_EQ(GetMissingTasks(call.result()), "0-40,42-99");
}

// Scenario 11. The late host would join a job that its peers have given up. With `reuse` it would
// begin the next one: those who gave up have been silent since they registered.
TEST(Registration, Scenario11WhoComesAfterTheTimeoutIsAborted) {
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

// Scenario 12. The coordinator restarted; a process of the job before still beats.
TEST(Registration, Scenario12AnOldHeartbeatIsRefusedAndDoesNotHinderRegistration) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.Heartbeat(0, 5), Fails(absl::StatusCode::kInvalidArgument));
  job.RegisterAll();
  EXPECT_THAT(job.Heartbeat(0), IsOk());
}

// Scenario 12, with the barrier.
TEST(Registration, Scenario12AnOldHeartbeatDoesNotHinderTheBarrier) {
  TestJob job(TogetherOptions(2));
  EXPECT_THAT(job.Heartbeat(0, 5), Fails(absl::StatusCode::kInvalidArgument));
  StatusCall first = job.Register(0);
  EXPECT_THAT(job.Heartbeat(1, 5), Fails(absl::StatusCode::kInvalidArgument));
  StatusCall second = job.Register(1);
  EXPECT_THAT(first.result(), IsOk());
  EXPECT_THAT(second.result(), IsOk());
}

// Scenario 13. A rank that starts computing before the others are there fails in its first send.
TEST(Registration, Scenario13NobodyIsAnsweredBeforeAllHaveCome) {
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

// Scenario 14. Hosts come up one after the other.
TEST(Registration, Scenario14StaggeredTasksAllJoinAndLeave) {
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

// Scenario 16. A process restarts while it waits for the others: its first try must not fail them.
TEST(Registration, Scenario16ARestartWhileConnectingReplacesTheStaleTry) {
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
TEST(Registration, ARetryWhileConnectingReplacesTheFirstTry) {
  TestJob job(TogetherOptions(2));
  StatusCall first = job.Register(0);
  StatusCall retry = job.Register(0);
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kAlreadyExists));
  StatusCall other = job.Register(1);
  EXPECT_THAT(retry.result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());
}

// Scenario 17. Recoverability is for tasks that have been there.
TEST(Registration, Scenario17RecoverableDoesNotRelaxTheFirstConnect) {
  CoordinatorOptions options = TogetherOptions(2);
  options.recoverable = true;
  options.reuse = false;  // See scenario 11.
  TestJob job(options);
  StatusCall first = job.Register(0);
  job.Advance(kRegisterTimeout);
  StatusCall late = job.Register(1);
  const auto refused =
      AnyOf(Fails(absl::StatusCode::kDeadlineExceeded), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(first.result(), refused);
  EXPECT_THAT(late.result(), refused);
}

// Scenario 18. Reset is how a failed task gets a second try.
TEST(Registration, Scenario18AfterAResetTheSameLifeMayRegister) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Reset(0), IsOk());
  EXPECT_THAT(job.Register(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kConnected);
}

// Scenario 18, from an error.
TEST(Registration, Scenario18AResetClearsAnError) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  ASSERT_THAT(job.Reset(0), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
  EXPECT_THAT(job.task(0).status, IsOk());
  EXPECT_THAT(job.Register(0, 999).result(), IsOk());
}

// Scenario 19. Clients compare the coordinator's life with every heartbeat's answer.
TEST(Registration, Scenario19TheCoordinatorKeepsItsIncarnationWhileTheJobLasts) {
  TestJob job(PlainOptions(2), 4711);
  EXPECT_EQ(job.coordinator().incarnation(), Incarnation(4711));
  job.RegisterAll();
  job.AdvanceWithHeartbeats(absl::Minutes(1), {0, 1});
  EXPECT_EQ(job.coordinator().incarnation(), Incarnation(4711));
  TestJob restarted(PlainOptions(2), 4712);
  EXPECT_NE(restarted.coordinator().incarnation(), job.coordinator().incarnation());
}

// Scenario 11, when the others waited only shortly.
TEST(Registration, Scenario11WhoComesSoonAfterTheTimeoutIsAbortedEvenWithReuse) {
  CoordinatorOptions options = TogetherOptions(2);
  options.register_timeout = kHeartbeatTimeout / 2;
  TestJob job(options);
  StatusCall call = job.Register(0);
  job.Advance(options.register_timeout);
  ASSERT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(job.Register(1).result(), Fails(absl::StatusCode::kAborted));
}

// A job that fails to name its parts must not start.
TEST(Registration, ACoordinatorWithoutTasksIsRefused) {
  FakeClock clock;
  EXPECT_THAT(Coordinator::Create(PlainOptions(0), clock, 1),
              Fails(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace ferry::coord
