// SPDX-License-Identifier: Apache-2.0
// Joining and leaving a job over the wire.
#include <string>
#include <vector>

#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

using RegistrationWire = WireTest;
FERRY_IN_EVERY_DIALECT(RegistrationWire);

// The incarnation that registration returns is the one in every heartbeat's answer; if they
// differed, clients would give the coordinator up as restarted.
TEST_P(RegistrationWire, BothTasksRegisterAndReceiveTheSameServiceIncarnation) {
  TestServer server(2);
  for (int i = 0; i < 2; ++i) {
    TaskClient task = server.Task(GetParam(), i);
    const Answer answer = task.Register(7 + i).Wait();
    EXPECT_EQ(task.ServiceIncarnation(answer), server.incarnation());
    EXPECT_EQ(task.ServiceIncarnation(task.Heartbeat(7 + i).Wait()), server.incarnation());
  }
}

// A client whose answer was lost asks again.
TEST_P(RegistrationWire, SameIncarnationMayRegisterTwice) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  EXPECT_THAT(task.Register(7).Wait(), IsOk());
  EXPECT_THAT(task.Register(7).Wait(), IsOk());
}

// A process that crashed and came back must not be taken for the old one.
TEST_P(RegistrationWire, AnotherIncarnationIsAbortedAndReportedToThePollers) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall poll = tasks[1].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  const Answer answer = tasks[0].Register(999).Wait();
  EXPECT_THAT(answer, Fails(StatusCode::kAborted));
  EXPECT_THAT(PayloadsOf(answer), Contains(Key(kCoordinationPayload)));
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kAborted));
}

// 5
TEST_P(RegistrationWire, TaskInErrorIsAborted) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  ASSERT_THAT(tasks[0].ReportError(StatusCode::kInternal, "broken").Wait(), IsOk());
  EXPECT_THAT(tasks[0].Register(100).Wait(), Fails(StatusCode::kAborted));
}

// 6
TEST_P(RegistrationWire, UnknownTaskIsRefusedWithoutAffectingOthers) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall poll = tasks[1].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_THAT(server.Task(GetParam(), 2).Register(1).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(server.Task(GetParam(), -1).Register(1).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(tasks[0].Heartbeat(100).Wait(), IsOk());
  EXPECT_FALSE(poll.done());
}

// Only the dialects that name a job.
TEST(Registration, UnknownJobIsRefused) {
  TestServer server(2);
  for (const Dialect dialect : {Dialect::kTensorflow, Dialect::kNamed}) {
    TaskClient task = server.Task(dialect, 0);
    task.set_job("worker");
    EXPECT_THAT(task.Register(1).Wait(), Fails(StatusCode::kInvalidArgument));
  }
}

// No task is answered before all have registered.
TEST_P(RegistrationWire, ConnectReturnsWhenAllTasksHaveCalled) {
  TestServer server(BarrierOptions(3));
  std::vector<TaskClient> tasks;
  std::vector<PendingCall> calls;
  for (int i = 0; i < 2; ++i) {
    tasks.push_back(server.Task(GetParam(), i));
    calls.push_back(tasks[i].Register(i + 1));
  }
  ASSERT_TRUE(server.WaitUntilParked(2));
  EXPECT_FALSE(calls[0].done());
  EXPECT_FALSE(calls[1].done());
  tasks.push_back(server.Task(GetParam(), 2));
  calls.push_back(tasks[2].Register(3));
  for (const PendingCall& call : calls) EXPECT_THAT(call.Wait(), IsOk());
}

// 9
TEST_P(RegistrationWire, RestartAfterTheConnectBarrierFailsLaterBarriers) {
  TestServer server(BarrierOptions(2));
  auto tasks = server.Registered(GetParam(), 2);
  EXPECT_THAT(tasks[0].Register(999).Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(tasks[1].Barrier("b", absl::Seconds(30)).Wait(), Fails(StatusCode::kInternal));
}

// The job never becomes complete.
TEST_P(RegistrationWire, TimeoutNamesTheMissingTasks) {
  ServerOptions options = BarrierOptions(3);
  options.coordinator.register_timeout = absl::Milliseconds(200);
  TestServer server(options);
  TaskClient task = server.Task(GetParam(), 0);
  const Answer answer = task.Register(1).Wait();
  // Named, for the readers of the log.
  EXPECT_THAT(answer, Fails(StatusCode::kDeadlineExceeded, AllOf(HasSubstr("1"), HasSubstr("2"))));
  EXPECT_THAT(PayloadsOf(answer), Contains(Key(kCoordinationPayload)));
  EXPECT_THAT(server.Task(GetParam(), 1).Register(2).Wait(), Fails(StatusCode::kAborted));
}

// Processes from before a restart of the coordinator still send heartbeats.
TEST_P(RegistrationWire, HeartbeatBeforeRegistrationIsRefusedAndRegistrationStillWorks) {
  TestServer server(1);
  TaskClient task = server.Task(GetParam(), 0);
  EXPECT_THAT(task.Heartbeat(7).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(task.Register(7).Wait(), IsOk());
}

// The stale client would retry after ABORTED, forever.
TEST_P(RegistrationWire, RestartDuringConnectReplacesTheEarlierAttempt) {
  TestServer server(BarrierOptions(2));
  TaskClient old_life = server.Task(GetParam(), 0);
  TaskClient new_life = server.Task(GetParam(), 0);
  TaskClient other = server.Task(GetParam(), 1);
  const PendingCall stale = old_life.Register(1);
  ASSERT_TRUE(server.WaitUntilParked(1));
  const PendingCall fresh = new_life.Register(2);
  EXPECT_THAT(stale.Wait(), Fails(StatusCode::kAlreadyExists));
  const PendingCall last = other.Register(3);
  EXPECT_THAT(fresh.Wait(), IsOk());
  EXPECT_THAT(last.Wait(), IsOk());
  EXPECT_THAT(new_life.Heartbeat(2).Wait(), IsOk());
}

// 17
TEST_P(RegistrationWire, RecoverableDoesNotRelaxTheFirstConnect) {
  ServerOptions options = BarrierOptions(3);
  options.coordinator.recoverable = true;
  options.coordinator.register_timeout = absl::Milliseconds(200);
  TestServer server(options);
  TaskClient task0 = server.Task(GetParam(), 0);
  TaskClient task1 = server.Task(GetParam(), 1);
  const PendingCall first = task0.Register(1);
  const PendingCall second = task1.Register(1);
  const auto late = AnyOf(Fails(StatusCode::kDeadlineExceeded), Fails(StatusCode::kAborted));
  EXPECT_THAT(first.Wait(), late);
  EXPECT_THAT(second.Wait(), late);
}

// 18
TEST_P(RegistrationWire, SameIncarnationRegistersAgainAfterReset) {
  TestServer server(1);
  auto tasks = server.Registered(GetParam(), 1);
  EXPECT_THAT(tasks[0].Reset().Wait(), IsOk());
  EXPECT_THAT(tasks[0].Register(100).Wait(), IsOk());
}

// Another coordinator, even on the same machine in the same second.
TEST(Registration, RestartedServiceHasAnotherIncarnation) {
  TestServer one(1);
  TestServer other(1);
  EXPECT_NE(one.incarnation(), other.incarnation());
  EXPECT_NE(one.incarnation(), 0u);
}

using ShutdownWire = WireTest;
FERRY_IN_EVERY_DIALECT(ShutdownWire);

// 115
TEST_P(ShutdownWire, IsABarrierAndBothMayComeBack) {
  TestServer server(BarrierOptions(2));
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall first = tasks[0].Shutdown();
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_FALSE(first.done());
  EXPECT_THAT(tasks[1].Shutdown().Wait(), IsOk());
  EXPECT_THAT(first.Wait(), IsOk());
  EXPECT_THAT(tasks[0].Register(100).Wait(), IsOk());
  EXPECT_THAT(tasks[1].Register(555).Wait(), IsOk());
}

// No task polls, so the missing task is notified by its heartbeat.
TEST_P(ShutdownWire, MissingTaskFailsTheOthersAndIsAbortedItself) {
  ServerOptions options = BarrierOptions(2);
  options.coordinator.shutdown_timeout = absl::Milliseconds(200);
  TestServer server(options);
  auto tasks = server.Registered(GetParam(), 2);
  EXPECT_THAT(tasks[0].Shutdown().Wait(), Fails(StatusCode::kInternal, HasSubstr("timed out")));
  EXPECT_THAT(tasks[1].Heartbeat(101).Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(tasks[1].Register(101).Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(tasks[1].Register(999).Wait(), Fails(StatusCode::kAborted));
}

// 117
TEST_P(ShutdownWire, MissingTaskThatPollsGetsTheErrorThere) {
  ServerOptions options = BarrierOptions(2);
  options.coordinator.shutdown_timeout = absl::Milliseconds(200);
  TestServer server(options);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall poll = tasks[1].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_THAT(tasks[0].Shutdown().Wait(), Fails(StatusCode::kInternal));
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kInternal));
}

// 121
TEST_P(ShutdownWire, UnknownTaskFails) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 1);
  EXPECT_THAT(tasks[0].Shutdown().Wait(), IsOk());
  EXPECT_THAT(tasks[0].Shutdown().Wait(), Fails(StatusCode::kFailedPrecondition));
  EXPECT_THAT(server.Task(GetParam(), 17).Shutdown().Wait(), Fails(StatusCode::kInvalidArgument));
}

// A task that leaves in peace ends its own poll, with a code that clients take as benign.
TEST_P(ShutdownWire, EndsTheTasksOwnPollAsCancelled) {
  TestServer server(1);
  auto tasks = server.Registered(GetParam(), 1);
  const PendingCall poll = tasks[0].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_THAT(tasks[0].Shutdown().Wait(), IsOk());
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kCancelled));
}

}  // namespace
}  // namespace ferry::coord
