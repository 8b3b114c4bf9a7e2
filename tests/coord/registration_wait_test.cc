// SPDX-License-Identifier: Apache-2.0
// Registration: giving up, waiting by choice, and tasks that are recoverable by themselves.
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

// The coordinator stops while tasks wait for the others.
TEST(Registration, StopAnswersAllWaitingTasks) {
  TestJob job(TogetherOptions(2));
  StatusCall call = job.Register(0);
  job.Stop();
  EXPECT_EQ(call.count(), 1);
  EXPECT_FALSE(call.result().ok());
  EXPECT_THAT(job.Register(1).result(), Fails(absl::StatusCode::kInternal));
}

// The client went away while it waited: the others must not start a job without it.
TEST(Registration, CancelledAttemptDoesNotCount) {
  TestJob job(TogetherOptions(2));
  StatusCall gone = job.Register(0);
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  StatusCall other = job.Register(1);
  EXPECT_FALSE(other.done());
  EXPECT_THAT(job.Register(0, 999).result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());
}

// The only task disconnects and comes back: the barrier must not stay half open.
TEST(Registration, TheLastOneToGiveUpLeavesTheBarrierUsable) {
  TestJob job(TogetherOptions(2));
  StatusCall gone = job.Register(0);
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_FALSE(job.Cancel(gone.wait()));
  job.Advance(kRegisterTimeout * 2);
  StatusCall first = job.Register(0, 999);
  EXPECT_FALSE(first.done());
  EXPECT_THAT(job.Register(1).result(), IsOk());
  EXPECT_THAT(first.result(), IsOk());
}

Registration Patient(int task, absl::Duration own_timeout) {
  Registration registration;
  registration.task = TaskId(task);
  registration.incarnation = Incarnation(LifeOf(task));
  registration.own_timeout = own_timeout;
  return registration;
}

// A client with a deadline of its own retries; the others go on waiting.
TEST(Registration, OwnTimeoutEndsOnlyTheOwnWait) {
  TestJob job(TogetherOptions(2));
  StatusCall other = job.Register(1);
  StatusCall impatient = job.Register(Patient(0, absl::Seconds(1)));
  EXPECT_THAT(impatient.result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());

  TestJob alone(TogetherOptions(3));
  other = alone.Register(1);
  impatient = alone.Register(Patient(0, absl::Seconds(1)));
  alone.Advance(absl::Seconds(1));
  EXPECT_THAT(impatient.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(other.done());
  EXPECT_THAT(alone.state(0), TaskState::kDisconnected);
}

// It must be missed again, or the others would start without it.
TEST(Registration, TaskThatGaveUpWaitingIsMissingUntilItRetries) {
  TestJob job(TogetherOptions(3));
  StatusCall other = job.Register(1);
  StatusCall impatient = job.Register(Patient(0, absl::Seconds(1)));
  job.Advance(absl::Seconds(1));
  ASSERT_TRUE(impatient.done());
  StatusCall last = job.Register(2);
  EXPECT_FALSE(other.done());
  EXPECT_FALSE(last.done());
  EXPECT_THAT(job.Register(Patient(0, absl::Seconds(1))).result(), IsOk());
  EXPECT_THAT(other.result(), IsOk());
  EXPECT_THAT(last.result(), IsOk());
}

// The first clients expect Connect to wait regardless of the job's options.
TEST(Registration, ATaskMayWaitForAllWithoutTheBarrier) {
  TestJob job(PlainOptions(2));
  Registration registration = Patient(0, absl::InfiniteDuration());
  registration.waits_for_all = true;
  StatusCall waiting = job.Register(registration);
  EXPECT_FALSE(waiting.done());
  registration.task = TaskId(1);
  StatusCall last = job.Register(registration);
  EXPECT_THAT(waiting.result(), IsOk());
  EXPECT_THAT(last.result(), IsOk());
}

// A task that has left again, or failed, is waited for anew.
TEST(Registration, TaskThatWaitsForAll_WaitsForThoseThatLeftMeanwhile) {
  for (const bool fails : {false, true}) {
    TestJob job(PlainOptions(3));
    ASSERT_THAT(job.Register(1).result(), IsOk());
    Registration registration = Patient(0, absl::InfiniteDuration());
    registration.waits_for_all = true;
    const StatusCall waiting = job.Register(registration);
    if (fails) {
      const StatusCall poll = job.Poll(1);
      ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
    }
    ASSERT_THAT(job.Reset(1), IsOk());
    ASSERT_THAT(job.Register(2).result(), IsOk());
    EXPECT_FALSE(waiting.done());
    ASSERT_THAT(job.Register(1, 999).result(), IsOk());
    EXPECT_THAT(waiting.result(), IsOk());
  }
}

// It registered last, so there is no task left to wait for.
TEST(Registration, TaskThatWaitsForAllDoesNotWaitForConnectedTasks) {
  TestJob job(PlainOptions(2));
  ASSERT_THAT(job.Register(0).result(), IsOk());
  Registration registration = Patient(1, absl::InfiniteDuration());
  registration.waits_for_all = true;
  StatusCall waiting = job.Register(registration);
  EXPECT_TRUE(waiting.done());
}

// The same with the roles exchanged.
TEST(Registration, ATaskThatDoesNotWaitEndsTheWaitOfTheOthers) {
  TestJob job(PlainOptions(2));
  Registration registration = Patient(1, absl::InfiniteDuration());
  registration.waits_for_all = true;
  StatusCall waiting = job.Register(registration);
  EXPECT_FALSE(waiting.done());
  ASSERT_THAT(job.Register(0).result(), IsOk());
  EXPECT_TRUE(waiting.done());
}

// It died, came back, waits for a task that has not registered yet, and is reset: this concerns it
// alone.
TEST(Registration, TheResetOfATaskThatWaitsForAllDoesNotFailTheJob) {
  TestJob job(RecoverableOptions(2));
  ASSERT_THAT(job.Register(1).result(), IsOk());
  job.Advance(2 * kHeartbeatTimeout);
  ASSERT_EQ(job.state(1), TaskState::kError);
  Registration registration = Patient(1, absl::InfiniteDuration());
  registration.incarnation = Incarnation(999);
  registration.waits_for_all = true;
  StatusCall waiting = job.Register(registration);
  EXPECT_FALSE(waiting.done());
  ASSERT_THAT(job.Reset(1), IsOk());
  EXPECT_EQ(job.state(1), TaskState::kDisconnected);
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
  EXPECT_THAT(job.Register(0).result(), IsOk());
}

// It gave up waiting in one incarnation and came back in another that does not wait: when the last
// task registers, the previous incarnation must not replace the current one.
TEST(Registration, PreviousIncarnationThatWaitedForAllDoesNotReplaceTheCurrentOne) {
  TestJob job(PlainOptions(2));
  Registration registration = Patient(1, absl::InfiniteDuration());
  registration.incarnation = Incarnation(5);
  registration.waits_for_all = true;
  StatusCall former = job.Register(registration);
  EXPECT_FALSE(former.done());
  ASSERT_THAT(job.Register(1, 6).result(), IsOk());
  EXPECT_FALSE(former.result().ok());
  ASSERT_THAT(job.Register(0).result(), IsOk());
  EXPECT_EQ(job.task(1).incarnation, Incarnation(6));
  EXPECT_THAT(job.Heartbeat(1, 6), IsOk());
}

// The end of the others' wait is no sign of life of a task that has been connected for long.
TEST(Registration, EndOfAnEarlierWaitIsNoSignOfLife) {
  TestJob job(PlainOptions(2));
  Registration registration = Patient(1, absl::InfiniteDuration());
  registration.waits_for_all = true;
  StatusCall waiting = job.Register(registration);
  ASSERT_THAT(job.Register(1).result(), IsOk());
  job.Advance(kHeartbeatTimeout * 0.8);
  ASSERT_THAT(job.Register(0).result(), IsOk());
  job.Advance(kHeartbeatTimeout * 0.3);
  EXPECT_EQ(job.state(1), TaskState::kError);
}

// Operators ask from which address a task registered.
TEST(Registration, TheFactsOfATaskAreKept) {
  TestJob job(PlainOptions(1));
  Registration registration = Patient(0, absl::InfiniteDuration());
  registration.facts.host_name = "gpu-17";
  registration.facts.process_id = 4242;
  ASSERT_THAT(job.Register(registration).result(), IsOk());
  EXPECT_EQ(job.task(0).facts.host_name, "gpu-17");
  EXPECT_EQ(job.task(0).facts.process_id, 4242);
}

// One recoverable evaluator in a job of workers that are not.
TEST(Registration, ATaskThatIsRecoverableByItselfMayComeBack) {
  TestJob job(PlainOptions(2));
  Registration registration = Patient(0, absl::InfiniteDuration());
  registration.recoverable = true;
  ASSERT_THAT(job.Register(registration).result(), IsOk());
  ASSERT_THAT(job.Register(1).result(), IsOk());
  StatusCall poll = job.Poll(1);
  registration.incarnation = Incarnation(999);
  EXPECT_THAT(job.Register(registration).result(), IsOk());
  EXPECT_FALSE(poll.done());
  EXPECT_THAT(job.Register(1, 999).result(), Fails(absl::StatusCode::kAborted));
}

// Its silence must not fail the workers either.
TEST(Registration, DeathOfATaskThatIsRecoverableByItselfIsNotReported) {
  TestJob job(PlainOptions(2));
  Registration registration = Patient(0, absl::InfiniteDuration());
  registration.recoverable = true;
  ASSERT_THAT(job.Register(registration).result(), IsOk());
  ASSERT_THAT(job.Register(1).result(), IsOk());
  StatusCall poll = job.Poll(1);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {1});
  EXPECT_EQ(job.state(0), TaskState::kError);
  EXPECT_FALSE(poll.done());
  EXPECT_THAT(job.Heartbeat(1), IsOk());
}

// The coordinator stops while a task waits with a deadline of its own.
TEST(Registration, Stop_EndsOwnTimeoutsToo) {
  TestJob job(TogetherOptions(2));
  const StatusCall call = job.Register(Patient(0, absl::Seconds(1)));
  job.Stop();
  EXPECT_EQ(call.count(), 1);
  EXPECT_EQ(job.coordinator().InnerTableSizes()["joining.deadlines"], 0u);
  job.Advance(absl::Seconds(2));
  EXPECT_EQ(call.count(), 1);
}

// The deadline of the try that was replaced is not that of its successor.
TEST(Registration, Retry_HasItsOwnDeadline) {
  TestJob job(TogetherOptions(2));
  const StatusCall first = job.Register(Patient(0, absl::Seconds(1)));
  const StatusCall second = job.Register(Patient(0, absl::Seconds(10)));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kAlreadyExists));
  job.Advance(absl::Seconds(10) - absl::Milliseconds(1));
  EXPECT_FALSE(second.done());
  job.Advance(absl::Milliseconds(1));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kDeadlineExceeded));
}

// Tasks that give up at the same time receive the names of the missing, which they themselves are
// not.
TEST(Registration, OwnTimeoutsThatEndTogether_NameOnlyTheMissingTasks) {
  TestJob job(TogetherOptions(4));
  const StatusCall first = job.Register(Patient(0, absl::Seconds(1)));
  const StatusCall second = job.Register(Patient(2, absl::Seconds(1)));
  job.Advance(absl::Seconds(1));
  for (const StatusCall& call : {first, second}) {
    ASSERT_THAT(call.result(), Fails(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(GetMissingTasks(call.result()), "1,3");
  }
}

// Its registration ends, with its deadline; the others go on waiting for it.
TEST(Registration, ATaskThatLeavesWhileItJoins_IsWaitedFor) {
  TestJob job(TogetherOptions(3));
  const StatusCall stays = job.Register(1);
  const StatusCall leaves = job.Register(Patient(0, absl::Seconds(1)));
  EXPECT_THAT(job.coordinator().LeaveTask(TaskId(0), Incarnation(LifeOf(0))), IsOk());
  job.Drain();
  EXPECT_THAT(leaves.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_EQ(job.coordinator().InnerTableSizes()["joining.deadlines"], 0u);
  const StatusCall last = job.Register(2);
  EXPECT_FALSE(stays.done());
  EXPECT_THAT(job.Register(0, 2000).result(), IsOk());
  EXPECT_THAT(stays.result(), IsOk());
  EXPECT_THAT(last.result(), IsOk());
}

}  // namespace
}  // namespace ferry::coord
