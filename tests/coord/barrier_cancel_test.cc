// SPDX-License-Identifier: Apache-2.0
// Barriers: cancelling, going away, calling twice, one-shot ids, and the end of the service.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/coord/barrier_calls.h"
#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// One participant cancels on behalf of all.
TEST(Barrier, CancellingEndsItForTheWaiters) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall waiting = job.Barrier(0, "b");
  EXPECT_THAT(job.CancelBarrier("b", 0), IsOk());
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_EQ(waiting.result().counter, 0);
}

// After a cancel the next use must work.
TEST(Barrier, AfterACancelTheNextUsePasses) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall waiting = job.Barrier(0, "b");
  ASSERT_THAT(job.CancelBarrier("b", 0), IsOk());
  EXPECT_THAT(job.Barrier(1, "b", 0).result(), Fails(absl::StatusCode::kCancelled));
  BarrierCall first = job.Barrier(0, "b", 1);
  ExpectPassed(job.Barrier(1, "b", 1), 1);
  ExpectPassed(first, 1);
}

// The cancellation comes after the barrier has passed.
TEST(Barrier, CancellingAfterItPassedIsRefused) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  EXPECT_THAT(job.CancelBarrier("b", 0),
              Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("already been passed")));
}

// A client that has restarted cancels another use of the barrier.
TEST(Barrier, CancellingAnotherUseIsRefused) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  BarrierCall waiting = job.Barrier(0, "b", 1);
  for (const int64_t wrong : {0, 2}) {
    EXPECT_THAT(job.CancelBarrier("b", wrong),
                Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("likely due to a restart")));
    EXPECT_FALSE(waiting.done());
  }
  EXPECT_THAT(job.CancelBarrier("b", 1), IsOk());
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kCancelled));
}

// Agents refuse this locally; here the coordinator does.
TEST(Barrier, CancellingAnUnknownBarrierIsNotFound) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.CancelBarrier("nobody", 0), Fails(absl::StatusCode::kNotFound));
  BarrierCall waiting = job.Barrier(0, "nobody");
  EXPECT_FALSE(waiting.done());
}

// A client's retry must neither count twice nor leave the first call pending.
TEST(Barrier, SecondCallOfATaskReplacesTheFirst) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b");
  BarrierCall retry = job.Barrier(0, "b");
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kCancelled));
  BarrierCall second = job.Barrier(1, "b");
  EXPECT_FALSE(retry.done());
  EXPECT_FALSE(second.done());
  ExpectPassed(job.Barrier(2, "b"), 0);
  ExpectPassed(retry, 0);
  ExpectPassed(second, 0);
  EXPECT_EQ(first.count(), 1);
}

// A barrier with a stale task cannot pass, not even for that task alone.
TEST(Barrier, StaleTaskFailsEverySetItIsIn) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  ASSERT_EQ(job.state(1), TaskState::kError);
  EXPECT_THAT(job.Barrier(0, "all").result(), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(job.Barrier(1, "alone", kFirst, {1}).result(), Fails(absl::StatusCode::kInternal));
}

// The job has failed, so a barrier over it must not wait.
TEST(Barrier, BarriersFailAfterAnErrorWasReported) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  ASSERT_TRUE(poll.done());
  EXPECT_THAT(job.Barrier(0, "b").result(), Fails(absl::StatusCode::kInternal));
}

// Two programs are out of step: each is notified about its own barrier.
TEST(Barrier, DifferentIdsTimeOutSeparately) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "left", kFirst, kEveryone, absl::Seconds(1));
  BarrierCall second = job.Barrier(1, "right", kFirst, kEveryone, absl::Seconds(1));
  job.Advance(absl::Seconds(1));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("left")));
  EXPECT_THAT(second.result(), Fails(absl::StatusCode::kDeadlineExceeded, HasSubstr("right")));
  EXPECT_EQ(GetMissingTasks(first.result().status), "1");
  EXPECT_EQ(GetMissingTasks(second.result().status), "0");
}

// Callers after the non-participant must get the same result as those before it.
TEST(Barrier, NonParticipantFailsLaterCallersToo) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall waiting = job.Barrier(1, "b", kFirst, {0, 1});
  BarrierCall stranger = job.Barrier(2, "b", kFirst, {0, 1});
  BarrierCall late = job.Barrier(0, "b", kFirst, {0, 1});
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stranger.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(late.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// A coordinator that stops has not decided the barrier.
TEST(Barrier, StopAbortsTheWaiters) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall waiting = job.Barrier(0, "b");
  job.Stop();
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Barrier(1, "b").result(), Fails(absl::StatusCode::kInternal));
}

// The caller's connection broke, but the rank has come: the others must not wait for it.
TEST(Barrier, ArrivalOfADisconnectedCallerStillCounts) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall gone = job.Barrier(0, "b");
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(job.Cancel(gone.wait()));
  ExpectPassed(job.Barrier(1, "b"), 0);
  EXPECT_EQ(gone.count(), 1);
}

// The task reconnects and calls again.
TEST(Barrier, DisconnectedCallerMayCallAgainAndWait) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall gone = job.Barrier(0, "b");
  ASSERT_TRUE(job.Cancel(gone.wait()));
  BarrierCall back = job.Barrier(0, "b");
  EXPECT_FALSE(back.done());
  ExpectPassed(job.Barrier(1, "b"), 0);
  ExpectPassed(back, 0);
}

// All callers went away; the barrier's deadline must still end it.
TEST(Barrier, WithoutCallersStillTimesOut) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall gone = job.Barrier(0, "b", kFirst, kEveryone, absl::Seconds(1));
  ASSERT_TRUE(job.Cancel(gone.wait()));
  job.Advance(absl::Seconds(1));
  EXPECT_EQ(job.coordinator().barriers().open_count(), 0u);
  EXPECT_THAT(job.Barrier(1, "b").result(), Fails(absl::StatusCode::kDeadlineExceeded));
}

// A list with repeats names the same tasks.
TEST(Barrier, AListWithRepeatsIsASet) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall first = job.Barrier(0, "b", kFirst, {1, 0, 1, 0});
  ExpectPassed(job.Barrier(1, "b", kFirst, {0, 1}), 0);
  ExpectPassed(first, 0);
}

// A barrier of one.
TEST(Barrier, PassesAtOnceWhenTheCallerIsTheOnlyParticipant) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  ExpectPassed(job.Barrier(1, "b", kFirst, {1}), 0);
}

// Barrier ids of the first clients can be used once: a late caller must not open them again.
TEST(Barrier, AOneShotBarrierIsNeverOpenedAgain) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierArrival arrival;
  arrival.id = "PjRT_Client_Connect";
  arrival.one_shot = true;
  arrival.caller = TaskId(0);
  BarrierCall first = job.Barrier(arrival);
  arrival.caller = TaskId(1);
  EXPECT_THAT(job.Barrier(arrival).result(), IsOk());
  EXPECT_THAT(first.result(), IsOk());
  EXPECT_THAT(job.Barrier(arrival).result(), IsOk());
  arrival.caller = TaskId(0);
  EXPECT_THAT(job.Barrier(arrival).result(), IsOk());
}

// One that failed stays failed.
TEST(Barrier, AOneShotBarrierKeepsItsTimeout) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierArrival arrival;
  arrival.id = "once";
  arrival.one_shot = true;
  arrival.timeout = absl::Seconds(1);
  arrival.caller = TaskId(0);
  BarrierCall first = job.Barrier(arrival);
  job.Advance(absl::Seconds(1));
  EXPECT_THAT(first.result(), Fails(absl::StatusCode::kDeadlineExceeded));
  arrival.caller = TaskId(1);
  EXPECT_THAT(job.Barrier(arrival).result(), Fails(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace ferry::coord
