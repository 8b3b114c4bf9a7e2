// SPDX-License-Identifier: Apache-2.0
// How tasks leave: at once or together; resets; and the coordinator's own stop.
#include <string>
#include <utility>
#include <vector>

#include "tests/coord/coordinator_fixture.h"

namespace ferry::coord {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kShutdownTimeout = absl::Minutes(5);

CoordinatorOptions LeaveTogetherOptions(int tasks) {
  CoordinatorOptions options = PlainOptions(tasks);
  options.shutdown_timeout = kShutdownTimeout;
  return options;
}

// Without a barrier no task waits.
TEST(Shutdown, LeavesAtOnceWithoutTheBarrier) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  EXPECT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
  EXPECT_EQ(job.state(1), TaskState::kConnected);
}

// A task that leaves early takes its shards with it.
TEST(Shutdown, NoTaskLeavesBeforeAllDo) {
  TestJob job(LeaveTogetherOptions(3));
  job.RegisterAll();
  StatusCall first = job.Shutdown(0);
  StatusCall second = job.Shutdown(1);
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  StatusCall third = job.Shutdown(2);
  for (const StatusCall& call : {first, second, third}) EXPECT_THAT(call.result(), IsOk());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(job.state(i), TaskState::kDisconnected);
}

// The next run on the same coordinator.
TEST(Shutdown, BothTasksMayRegisterAgainAfterIt) {
  for (const bool reuse : {false, true}) {
    CoordinatorOptions options = LeaveTogetherOptions(2);
    options.reuse = reuse;
    TestJob job(options);
    job.RegisterAll();
    StatusCall first = job.Shutdown(0);
    ASSERT_THAT(job.Shutdown(1).result(), IsOk());
    ASSERT_THAT(first.result(), IsOk());
    EXPECT_THAT(job.Register(0).result(), IsOk());
    EXPECT_THAT(job.Register(1, 999).result(), IsOk());
    EXPECT_THAT(job.Heartbeat(0), IsOk());
    EXPECT_THAT(job.Heartbeat(1, 999), IsOk());
  }
}

// The next run ends too: the shutdown barrier must not be used up.
TEST(Shutdown, NextRunHasABarrierAgain) {
  CoordinatorOptions options = LeaveTogetherOptions(2);
  options.register_barrier = true;  // `reuse` needs it.
  TestJob job(options);
  job.RegisterAll();
  StatusCall first = job.Shutdown(0);
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  StatusCall next = job.Register(0, 998);
  ASSERT_THAT(job.Register(1, 999).result(), IsOk());
  ASSERT_THAT(next.result(), IsOk());
  StatusCall again = job.Shutdown(0);
  EXPECT_FALSE(again.done());
  EXPECT_THAT(job.Shutdown(1).result(), IsOk());
  EXPECT_THAT(again.result(), IsOk());
}

// One rank hangs at the end.
TEST(Shutdown, TimeoutFailsTheCallerAndTheMissingTask) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall call = job.Shutdown(0);
  job.AdvanceWithHeartbeats(kShutdownTimeout - absl::Seconds(1), {0, 1});
  EXPECT_FALSE(call.done());
  job.AdvanceWithHeartbeats(absl::Seconds(1), {0, 1});
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal, HasSubstr("timed out")));
  EXPECT_THAT(job.Register(1).result(), Fails(absl::StatusCode::kAborted));
  EXPECT_THAT(job.Register(1, 999).result(), Fails(absl::StatusCode::kAborted));
}

// The missing task must be notified that the others have given it up.
TEST(Shutdown, MissingTaskIsNotifiedByItsHeartbeatWithoutPolls) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall call = job.Shutdown(0);
  job.AdvanceWithHeartbeats(kShutdownTimeout, {0, 1});
  ASSERT_TRUE(call.done());
  EXPECT_THAT(job.Heartbeat(1), Fails(absl::StatusCode::kAborted));
}

// The same for clients that poll.
TEST(Shutdown, MissingTaskIsNotifiedByItsPoll) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall poll = job.Poll(1);
  StatusCall call = job.Shutdown(0);
  job.AdvanceWithHeartbeats(kShutdownTimeout, {0, 1});
  ASSERT_TRUE(call.done());
  EXPECT_THAT(poll.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_EQ(job.state(0), TaskState::kError);
  EXPECT_EQ(job.state(1), TaskState::kError);
  EXPECT_THAT(job.Heartbeat(1), Fails(absl::StatusCode::kAborted));
}

// One rank was killed before the end.
TEST(Shutdown, FailsWhenATaskVanishes) {
  TestJob job(LeaveTogetherOptions(3));
  job.RegisterAll();
  StatusCall first = job.Shutdown(0);
  StatusCall second = job.Shutdown(1);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0, 1});
  const auto refused = AnyOf(Fails(absl::StatusCode::kInternal, HasSubstr("timed out")),
                             Fails(absl::StatusCode::kInternal, HasSubstr("heartbeat timeout")),
                             Fails(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(first.result(), refused);
  EXPECT_THAT(second.result(), refused);
}

// The same when the death was detected first.
TEST(Shutdown, FailsAtOnceWhenATaskHadVanishedBefore) {
  TestJob job(LeaveTogetherOptions(3));
  job.RegisterAll();
  StatusCall poll = job.Poll(0);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {0, 1});
  ASSERT_TRUE(poll.done());
  StatusCall call = job.Shutdown(0);
  EXPECT_THAT(call.result(), AnyOf(Fails(absl::StatusCode::kInternal),
                                   Fails(absl::StatusCode::kFailedPrecondition)));
}

// One rank's script ends early and its client shuts down by itself.
TEST(Shutdown, TaskThatExitsEarlyFailsBothPollers) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall early = job.Poll(0);
  StatusCall other = job.Poll(1);
  StatusCall call = job.Shutdown(0);
  EXPECT_FALSE(early.done());
  job.AdvanceWithHeartbeats(kShutdownTimeout, {0, 1});
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(early.result(), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(other.result(), Fails(absl::StatusCode::kInternal));
}

// The task has left already, or is unknown.
TEST(Shutdown, DisconnectedOrUnknownTaskIsRefused) {
  for (const absl::Duration timeout : {absl::ZeroDuration(), kShutdownTimeout}) {
    CoordinatorOptions options = PlainOptions(2);
    options.shutdown_timeout = timeout;
    TestJob job(options);
    EXPECT_THAT(job.Shutdown(2).result(), Fails(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(job.Shutdown(-1).result(), Fails(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(job.Shutdown(0).result(), Fails(absl::StatusCode::kFailedPrecondition));
  }
}

// The answer was lost; upstream answers the retry with the error of disconnecting again.
TEST(Shutdown, RetryAfterSuccessReportsThatTheTaskHasLeft) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall first = job.Shutdown(0);
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  EXPECT_THAT(job.Shutdown(0).result(), Fails(absl::StatusCode::kFailedPrecondition));
}

// A failed rank cleans up after itself.
TEST(Shutdown, ClearsTheErrorOfATask) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  ASSERT_THAT(job.Report(0, absl::InternalError("broken")), IsOk());
  EXPECT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
}

// A recoverable task leaves at any time.
TEST(Shutdown, RecoverableTaskDoesNotWait) {
  CoordinatorOptions options = LeaveTogetherOptions(2);
  options.recoverable = true;
  TestJob job(options);
  job.RegisterAll();
  EXPECT_THAT(job.Shutdown(0).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
}

// Waiting to leave is not silence: heartbeats go on meanwhile, and without them it is dead.
TEST(Shutdown, TaskThatWaitsToLeaveMustStillSendHeartbeats) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall call = job.Shutdown(0);
  job.AdvanceWithHeartbeats(2 * kHeartbeatTimeout, {1});
  EXPECT_EQ(job.state(0), TaskState::kError);
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
}

// The client's connection broke while it waited: the others can still leave.
TEST(Shutdown, TaskThatDisconnectsWhileLeavingStillCounts) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall gone = job.Shutdown(0);
  EXPECT_TRUE(job.Cancel(gone.wait()));
  EXPECT_THAT(gone.result(), Fails(absl::StatusCode::kCancelled));
  EXPECT_THAT(job.Shutdown(1).result(), IsOk());
  EXPECT_EQ(job.state(0), TaskState::kDisconnected);
  EXPECT_EQ(job.state(1), TaskState::kDisconnected);
}

// A retry while the first try waits.
TEST(Shutdown, SecondCallReplacesTheFirst) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall first = job.Shutdown(0);
  StatusCall retry = job.Shutdown(0);
  EXPECT_TRUE(first.done());
  EXPECT_FALSE(first.result().ok());
  EXPECT_FALSE(retry.done());
  ASSERT_THAT(job.Shutdown(1).result(), IsOk());
  EXPECT_THAT(retry.result(), IsOk());
  EXPECT_EQ(first.count(), 1);
}

// A task that is reset will not come to the shutdown.
TEST(Shutdown, FailsWhenATaskIsResetMeanwhile) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall call = job.Shutdown(0);
  ASSERT_THAT(job.Reset(1), IsOk());
  EXPECT_THAT(call.result(), Fails(absl::StatusCode::kInternal));
}

TEST(Shutdown, WhileStoppingIsAnsweredOnce) {
  TestJob job(LeaveTogetherOptions(2));
  job.RegisterAll();
  StatusCall call = job.Shutdown(0);
  job.Stop();
  EXPECT_EQ(call.count(), 1);
  EXPECT_FALSE(call.result().ok());
  EXPECT_THAT(job.Shutdown(1).result(), Fails(absl::StatusCode::kInternal));
}

TEST(Reset, UnknownOrDisconnectedTaskIsRefused) {
  TestJob job(PlainOptions(2));
  EXPECT_THAT(job.Reset(2), Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(job.Reset(0), Fails(absl::StatusCode::kFailedPrecondition));
  job.Stop();
  EXPECT_THAT(job.Reset(0), Fails(absl::StatusCode::kInternal));
}

// All kinds of pending calls at once, as in a live job: each callback must run exactly once.
TEST(Stop, AnswersEveryKindOfCallOnce) {
  CoordinatorOptions options = LeaveTogetherOptions(3);
  TestJob job(options);
  job.RegisterAll();
  const StatusCall poll = job.Poll(0);
  const StatusCall shutdown = job.Shutdown(1);
  const BarrierCall barrier = job.Barrier(0, "b");
  const GetCall get = job.Get({"a"});
  const TableCall watch = job.WatchTasks(job.coordinator().membership().version());
  const AliveCall alive = job.Alive(0, {0, 1});
  const InfosCall infos = job.WaitForAll(0, "devices");
  const EnumerateCall enumerate = job.Enumerate(0, LocalTopology());
  EXPECT_EQ(job.coordinator().wait_count(), 8u);
  EXPECT_EQ(job.coordinator().Waits().size(), 8u);
  EXPECT_EQ(job.coordinator().InnerTableSizes()["alive.askers"], 1u);
  job.Stop();
  EXPECT_EQ(job.coordinator().wait_count(), 0u);
  EXPECT_TRUE(job.coordinator().is_stopped());
  EXPECT_EQ(poll.count(), 1);
  EXPECT_EQ(shutdown.count(), 1);
  EXPECT_EQ(barrier.count(), 1);
  EXPECT_EQ(get.count(), 1);
  EXPECT_EQ(watch.count(), 1);
  EXPECT_EQ(alive.count(), 1);
  EXPECT_EQ(infos.count(), 1);
  EXPECT_EQ(enumerate.count(), 1);
  EXPECT_FALSE(alive.result().ok());
  EXPECT_FALSE(infos.result().ok());
  EXPECT_FALSE(enumerate.result().ok());
}

// A second stop, or an advance of the clock afterwards, must have no effect.
TEST(Stop, SecondStopHasNoEffect) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  const StatusCall poll = job.Poll(0);
  job.Stop();
  job.Stop();
  job.clock().Advance(absl::Hours(1));
  job.coordinator().Advance();
  job.Drain();
  EXPECT_EQ(poll.count(), 1);
  EXPECT_EQ(job.state(0), TaskState::kConnected);
  EXPECT_EQ(job.coordinator().NextDeadline(), absl::InfiniteFuture());
}

// Calls that come after the end.
TEST(Stop, LaterCallsAreInternal) {
  TestJob job(PlainOptions(2));
  job.RegisterAll();
  job.Stop();
  EXPECT_THAT(job.Register(0).result(), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(job.WaitForAll(0, "x").result(), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(job.Alive(0, {0}).result(), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(job.Enumerate(0, LocalTopology()).result(), Fails(absl::StatusCode::kInternal));
  EXPECT_THAT(job.CancelBarrier("b"), Fails(absl::StatusCode::kInternal));
}

// A wait that never was.
TEST(Cancel, UnknownWaitIsFalse) {
  TestJob job(PlainOptions(2));
  EXPECT_FALSE(job.Cancel(kNoWait));
  for (uint64_t id = 1; id < 64; ++id) EXPECT_FALSE(job.Cancel(WaitId(id)));
}

}  // namespace
}  // namespace ferry::coord
