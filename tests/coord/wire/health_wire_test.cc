// SPDX-License-Identifier: Apache-2.0
// Heartbeats and errors over the wire.
#include <string>
#include <vector>

#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Key;

using HeartbeatWire = WireTest;
FERRY_IN_EVERY_DIALECT(HeartbeatWire);

ServerOptions Impatient(int tasks) {
  ServerOptions options = TestOptions(tasks);
  options.coordinator.heartbeat_timeout = absl::Milliseconds(300);
  return options;
}

// A loaded machine can be late with requests that have to come within the timeout of Impatient.
//   attempt: with a server of its own; returns whether it was in time, and expects nothing if it
//   was not.
template <typename Attempt>
void ExpectInTime(Attempt attempt) {
  for (int i = 0; i < 20; ++i) {
    if (attempt()) return;
  }
  ADD_FAILURE() << "no attempt was in time";
}

bool IsInTime(absl::Time began, const ServerOptions& options) {
  return absl::Now() - began < options.coordinator.heartbeat_timeout;
}

// 22, 23
TEST_P(HeartbeatWire, WrongTaskOrIncarnationFails) {
  TestServer server(1);
  auto tasks = server.Registered(GetParam(), 1);
  EXPECT_THAT(server.Task(GetParam(), 1).Heartbeat(1).Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(tasks[0].Heartbeat(99).Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(tasks[0].Heartbeat(99).Wait(), Fails(StatusCode::kAborted));
}

// No task polls, as before jaxlib 0.4.36, so each is notified by its own heartbeat.
TEST_P(HeartbeatWire, AllTasksAreAbortedAfterSilence) {
  TestServer server(Impatient(2));
  auto tasks = server.Registered(GetParam(), 2);
  EXPECT_TRUE(
      Eventually([&] { return tasks[1].Heartbeat(101).Wait().code == StatusCode::kAborted; }));
  EXPECT_THAT(tasks[0].Heartbeat(100).Wait(), Fails(StatusCode::kAborted));
}

// A pending poll is itself a sign of life, so a third task is the one that falls silent.
TEST_P(HeartbeatWire, SilenceReachesThePollersAsUnavailableNamingTheSilent) {
  TestServer server(Impatient(3));
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall poll0 = tasks[0].Poll();
  const PendingCall poll1 = tasks[1].Poll();
  const Answer answer = poll0.Wait();
  EXPECT_THAT(answer, Fails(StatusCode::kUnavailable, HasSubstr("2")));
  EXPECT_THAT(PayloadsOf(answer), Contains(Key(kCoordinationPayload)));
  EXPECT_THAT(poll1.Wait(), Fails(StatusCode::kUnavailable));
}

// 28, 29
TEST_P(HeartbeatWire, AreWelcomeForAGraceAfterLeaving) {
  ExpectInTime([&] {
    const ServerOptions options = Impatient(2);
    TestServer server(options);
    const absl::Time began = absl::Now();
    auto tasks = server.Registered(GetParam(), 2);
    const Answer answers[] = {tasks[0].Shutdown().Wait(), tasks[1].Reset().Wait(),
                              tasks[0].Heartbeat(100).Wait(), tasks[1].Heartbeat(101).Wait()};
    if (!IsInTime(began, options)) return false;
    EXPECT_THAT(answers, Each(IsOk()));
    EXPECT_TRUE(Eventually(
        [&] { return tasks[0].Heartbeat(100).Wait().code == StatusCode::kInvalidArgument; }));
    EXPECT_TRUE(Eventually(
        [&] { return tasks[1].Heartbeat(101).Wait().code == StatusCode::kInvalidArgument; }));
    return true;
  });
}

// Otherwise a zombie would keep alive the process that replaced it.
TEST_P(HeartbeatWire, PreviousIncarnationDoesNotKeepARecoverableTaskAlive) {
  ExpectInTime([&] {
    ServerOptions options = Impatient(1);
    options.coordinator.recoverable = true;
    TestServer server(options);
    const absl::Time began = absl::Now();
    auto tasks = server.Registered(GetParam(), 1);
    const Answer answers[] = {tasks[0].Register(200).Wait(), tasks[0].Heartbeat(100).Wait()};
    if (!IsInTime(began, options)) return false;
    EXPECT_THAT(answers, Each(IsOk()));
    EXPECT_TRUE(
        Eventually([&] { return tasks[0].Heartbeat(100).Wait().code == StatusCode::kAborted; }));
    return true;
  });
}

using PollWire = WireTest;
FERRY_IN_EVERY_DIALECT(PollWire);

// The coordinator is stopped.
TEST_P(PollWire, EndsCancelledWhenTheServiceStops) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall poll0 = tasks[0].Poll();
  const PendingCall poll1 = tasks[1].Poll();
  ASSERT_TRUE(server.WaitUntilParked(2));
  server->Stop();
  EXPECT_THAT(poll0.Wait(), Fails(StatusCode::kCancelled));
  EXPECT_THAT(poll1.Wait(), Fails(StatusCode::kCancelled));
}

// The payload shows that a task reported it.
TEST_P(PollWire, ReturnsAReportedErrorWithItsSource) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall poll0 = tasks[0].Poll();
  const PendingCall poll1 = tasks[1].Poll();
  ASSERT_TRUE(server.WaitUntilParked(2));
  ASSERT_THAT(tasks[1].ReportError(StatusCode::kInternal, "nan in layer 3").Wait(), IsOk());
  const Answer answer = poll0.Wait();
  EXPECT_THAT(answer, Fails(StatusCode::kInternal, HasSubstr("nan in layer 3")));
  EXPECT_THAT(poll1.Wait(), Fails(StatusCode::kInternal));
  auto payload = tasks[0].New("CoordinationServiceError");
  ASSERT_TRUE(payload->ParseFromString(PayloadsOf(answer)[kCoordinationPayload]));
  const bool numbered = GetParam() == Dialect::kNumbered || GetParam() == Dialect::kIncarnations;
  EXPECT_THAT(payload->ShortDebugString(),
              numbered ? "is_reported_error: true source_task: 1"
                       : "is_reported_error: true source_task { job_name: \"jax_worker\" "
                         "task_id: 1 }");
}

// 34, 35
TEST_P(PollWire, UnknownTaskFails) {
  TestServer server(2);
  EXPECT_THAT(server.Task(GetParam(), 5).Poll().Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("not in the cluster")));
  EXPECT_THAT(server.Task(GetParam(), 1).Poll().Wait(),
              Fails(StatusCode::kFailedPrecondition, HasSubstr("has not been registered")));
}

// 36, 37, 38
TEST_P(PollWire, IsPendingWithinTheGraceAfterLeavingAndRefusedLater) {
  ExpectInTime([&] {
    const ServerOptions options = Impatient(2);
    TestServer server(options);
    const absl::Time began = absl::Now();
    auto tasks = server.Registered(GetParam(), 2);
    const Answer left[] = {tasks[0].Shutdown().Wait(), tasks[1].Reset().Wait()};
    const PendingCall early = tasks[0].Poll();
    // It has been refused, or the coordinator has it.
    EXPECT_TRUE(Eventually([&] { return early.done() || server.parked() == 1; }));
    if (!IsInTime(began, options)) return false;
    EXPECT_THAT(left, Each(IsOk()));
    EXPECT_TRUE(Eventually(
        [&] { return tasks[1].Heartbeat(101).Wait().code == StatusCode::kInvalidArgument; }));
    EXPECT_THAT(tasks[1].Poll().Wait(),
                Fails(StatusCode::kFailedPrecondition, HasSubstr("has disconnected")));
    EXPECT_FALSE(early.done());
    server->Stop();
    EXPECT_THAT(early.Wait(), Fails(StatusCode::kCancelled));
    return true;
  });
}

// 39
TEST_P(PollWire, TaskInErrorFails) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  ASSERT_THAT(tasks[0].ReportError(StatusCode::kDataLoss, "gone").Wait(), IsOk());
  EXPECT_THAT(tasks[0].Poll().Wait(), Fails(StatusCode::kFailedPrecondition));
}

// 40
TEST_P(PollWire, SilentTaskFails) {
  TestServer server(Impatient(1));
  auto tasks = server.Registered(GetParam(), 1);
  ASSERT_TRUE(
      Eventually([&] { return tasks[0].Table(tasks[0].Watch(-1).Wait()).tasks[0].state == 4; }));
  EXPECT_THAT(tasks[0].Poll().Wait(),
              Fails(StatusCode::kFailedPrecondition, HasSubstr("already in error")));
}

// 42
TEST_P(PollWire, SecondPollOfATaskCancelsTheFirst) {
  TestServer server(1);
  auto tasks = server.Registered(GetParam(), 1);
  const PendingCall first = tasks[0].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  const PendingCall second = tasks[0].Poll();
  EXPECT_THAT(first.Wait(), Fails(StatusCode::kCancelled));
  EXPECT_FALSE(second.done());
}

// 43, 44
TEST_P(PollWire, AnotherTasksErrorReachesNoTaskInARecoverableJob) {
  ServerOptions options = TestOptions(2);
  options.coordinator.recoverable = true;
  TestServer server(options);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall poll = tasks[1].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  ASSERT_THAT(tasks[0].ReportError(StatusCode::kInternal, "broken").Wait(), IsOk());
  EXPECT_THAT(tasks[0].Heartbeat(100).Wait(), Fails(StatusCode::kAborted));
  EXPECT_THAT(tasks[1].Heartbeat(101).Wait(), IsOk());
  EXPECT_FALSE(poll.done());
  ASSERT_THAT(tasks[0].Reset().Wait(), IsOk());
  ASSERT_THAT(tasks[0].Register(200).Wait(), IsOk());
  EXPECT_THAT(tasks[0].Heartbeat(200).Wait(), IsOk());
}

// 45
TEST_P(PollWire, UnknownTasksReportIsRefused) {
  TestServer server(2);
  EXPECT_THAT(server.Task(GetParam(), 0).ReportError(StatusCode::kInternal, "x").Wait(),
              Fails(StatusCode::kFailedPrecondition));
  EXPECT_THAT(server.Task(GetParam(), 2).ReportError(StatusCode::kInternal, "x").Wait(),
              Fails(StatusCode::kInvalidArgument));
}

// The first cause is kept, not its consequences.
TEST_P(PollWire, FirstErrorStays) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall poll = tasks[2].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  ASSERT_THAT(tasks[0].ReportError(StatusCode::kInternal, "first").Wait(), IsOk());
  ASSERT_THAT(tasks[1].ReportError(StatusCode::kDataLoss, "second").Wait(), IsOk());
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kInternal, HasSubstr("first")));
  EXPECT_THAT(tasks[2].Poll().Wait(), Fails(StatusCode::kInternal, HasSubstr("first")));
}

// GetTaskState; no dialect after G4 has it.
TEST(TaskStates, ReturnStateAndErrorOfEachRequestedTask) {
  TestServer server(3);
  auto tasks = server.Registered(Dialect::kNumbered, 2);
  // With a poller, the error of one is not made the error of all.
  const PendingCall poll = tasks[0].Poll();
  ASSERT_TRUE(server.WaitUntilParked(1));
  ASSERT_THAT(tasks[1].ReportError(StatusCode::kDataLoss, "gone").Wait(), IsOk());
  const Answer answer = tasks[0].States({1, 2}).Wait();
  ASSERT_THAT(answer, IsOk());
  auto response = tasks[0].New("GetTaskStateResponse");
  ASSERT_TRUE(response->ParseFromString(answer.body));
  const std::string text = response->ShortDebugString();
  EXPECT_THAT(text, HasSubstr("task: 1 state: ERROR error_code: 15"));
  EXPECT_THAT(text, HasSubstr("gone"));
  EXPECT_THAT(text, HasSubstr("task: 2 state: DISCONNECTED"));
}

}  // namespace
}  // namespace ferry::coord
