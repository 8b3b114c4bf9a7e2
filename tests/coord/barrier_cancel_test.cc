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

// Scenario 97. Somebody gives up on behalf of all.
TEST(Barrier, Scenario97CancellingEndsItForTheWaiters) {
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

// Scenario 98. Too late.
TEST(Barrier, Scenario98CancellingAfterItPassedIsRefused) {
  TestJob job(PlainOptions(2));
  PassOnce(job);
  EXPECT_THAT(job.CancelBarrier("b", 0),
              Fails(absl::StatusCode::kFailedPrecondition, HasSubstr("already been passed")));
}

// Scenario 99. A cancel of a client that has restarted means another use.
TEST(Barrier, Scenario99CancellingAnotherUseIsRefused) {
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

// Scenario 100, at the coordinator: agents refuse it themselves.
TEST(Barrier, Scenario100CancellingAnUnknownBarrierIsNotFound) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.CancelBarrier("nobody", 0), Fails(absl::StatusCode::kNotFound));
  BarrierCall waiting = job.Barrier(0, "nobody");
  EXPECT_FALSE(waiting.done());
}

// Scenario 102. A client's retry must neither count twice nor leave the first call hanging.
TEST(Barrier, Scenario102ASecondCallOfATaskReplacesTheFirst) {
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

// Scenario 104. A stale task cannot meet anyone, not even itself.
TEST(Barrier, Scenario104AStaleTaskFailsEverySetItIsIn) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0});
  ASSERT_EQ(job.state(1), TaskState::kError);
  EXPECT_THAT(job.Barrier(0, "all").result(), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(job.Barrier(1, "alone", kFirst, {1}).result(), Fails(absl::StatusCode::kInternal));
}

// Scenario 105. The job has failed; a barrier over it must not wait.
TEST(Barrier, Scenario105AfterAnErrorWasToldBarriersFail) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  ASSERT_THAT(job.Report(1, absl::InternalError("broken")), IsOk());
  ASSERT_TRUE(poll.done());
  EXPECT_THAT(job.Barrier(0, "b").result(), Fails(absl::StatusCode::kInternal));
}

// Scenario 107. Two programs out of step: each must hear of its own barrier.
TEST(Barrier, Scenario107DifferentIdsTimeOutEachForItself) {
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

// Scenario 109. Who comes after the stranger must share the others' verdict.
TEST(Barrier, Scenario109ANonParticipantFailsAlsoThoseWhoComeLater) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  BarrierCall waiting = job.Barrier(1, "b", kFirst, {0, 1});
  BarrierCall stranger = job.Barrier(2, "b", kFirst, {0, 1});
  BarrierCall late = job.Barrier(0, "b", kFirst, {0, 1});
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stranger.result(), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(late.result(), Fails(absl::StatusCode::kInvalidArgument));
}

// Scenario 113. A coordinator that goes down is no verdict on the barrier.
TEST(Barrier, Scenario113StopAbortsTheWaiters) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall waiting = job.Barrier(0, "b");
  job.Stop();
  EXPECT_THAT(waiting.result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Barrier(1, "b").result(), Fails(absl::StatusCode::kInternal));
}

// The caller's connection broke, but the rank has come: the others must not wait for it.
TEST(Barrier, AnArrivalWhoseCallerWentAwayStillCounts) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  BarrierCall gone = job.Barrier(0, "b");
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_FALSE(job.Cancel(gone.wait()));
  ExpectPassed(job.Barrier(1, "b"), 0);
  EXPECT_EQ(gone.count(), 1);
}

// It reconnects and asks again.
TEST(Barrier, WhoWentAwayMayComeBackAndWait) {
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
TEST(Barrier, OfTheCallerAlonePassesAtOnce) {
  TestJob job(PlainOptions(3));
  job.RegisterAll();
  ExpectPassed(job.Barrier(1, "b", kFirst, {1}), 0);
}

// The seed's barrier ids serve once: a late caller must not open them anew.
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
