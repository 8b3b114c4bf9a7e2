// SPDX-License-Identifier: Apache-2.0
// Barriers over the wire, with the payload that carries the counter.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/tsl_coordination.pb.h"
#include "test_server.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(150);

using BarrierWire = WireTest;
FERRY_IN_EVERY_DIALECT(BarrierWire);

// The client takes its next counter from this payload; without it the id could not be used again.
void ExpectBarrierError(const Answer& answer, const std::string& id, int64_t counter) {
  const auto payloads = PayloadsOf(answer);
  EXPECT_THAT(payloads, Contains(Key(kCoordinationPayload))) << answer;
  ASSERT_THAT(payloads, Contains(Key(kBarrierPayload))) << answer;
  tensorflow::BarrierError error;
  ASSERT_TRUE(error.ParseFromString(payloads.at(kBarrierPayload)));
  EXPECT_EQ(error.barrier_id(), id);
  EXPECT_EQ(error.counter(), counter) << answer;
}

// 81
TEST_P(BarrierWire, PassesWhenTheLastArrives) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall first = tasks[0].Barrier("b", kLong);
  const PendingCall second = tasks[1].Barrier("b", kLong);
  ASSERT_TRUE(server.WaitUntilParked(2));
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  EXPECT_EQ(tasks[2].Counter(tasks[2].Barrier("b", kLong).Wait()), 0);
  EXPECT_EQ(tasks[0].Counter(first.Wait()), 0);
  EXPECT_EQ(tasks[1].Counter(second.Wait()), 0);
}

// 82
TEST_P(BarrierWire, SubsetNeedsOnlyItsTasks) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall first = tasks[0].Barrier("b", kLong, 0, {0, 1});
  EXPECT_THAT(tasks[1].Barrier("b", kLong, 0, {1, 0}).Wait(), IsOk());
  EXPECT_THAT(first.Wait(), IsOk());
}

// One process lists all, the other none; the list also in another order and with repeats.
TEST_P(BarrierWire, ListOfAllTasksIsTheBarrierOfAll) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const std::vector<std::vector<int>> lists[] = {
      {{0, 1}, {}}, {{}, {1, 0}}, {{1, 0, 1}, {0, 1}}, {{}, {}}};
  for (int64_t counter = 0; counter < 4; ++counter) {
    const PendingCall first = tasks[0].Barrier("b", kLong, counter, lists[counter][0]);
    ASSERT_TRUE(server.WaitUntilParked(1));
    EXPECT_THAT(tasks[1].Barrier("b", kLong, counter, lists[counter][1]).Wait(), IsOk());
    EXPECT_THAT(first.Wait(), IsOk());
  }
}

// It would continue without the tasks on its list.
TEST_P(BarrierWire, AnotherListAfterItPassedIsAConflict) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall first = tasks[0].Barrier("b", kLong, 0, {0, 1});
  EXPECT_THAT(tasks[1].Barrier("b", kLong, 0, {0, 1}).Wait(), IsOk());
  EXPECT_THAT(first.Wait(), IsOk());
  const Answer late = tasks[0].Barrier("b", kLong, 0, {0, 2}).Wait();
  EXPECT_THAT(late, Fails(StatusCode::kInvalidArgument, HasSubstr("Conflicting tasks specified")));
  ExpectBarrierError(late, "b", 0);
  EXPECT_THAT(tasks[2].Barrier("b", kLong, 0).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("No tasks were specified")));
}

// 83
TEST_P(BarrierWire, TwoListsUnderOneIdFailBoth) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall first = tasks[0].Barrier("b", kLong, 0, {0, 1});
  ASSERT_TRUE(server.WaitUntilParked(1));
  const Answer second = tasks[1].Barrier("b", kLong, 0, {1, 2}).Wait();
  EXPECT_THAT(second, Fails(StatusCode::kInvalidArgument));
  ExpectBarrierError(second, "b", 0);
  EXPECT_THAT(first.Wait(), Fails(StatusCode::kInvalidArgument));
}

// 84, 109
TEST_P(BarrierWire, NonParticipantFailsAllCallers) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall first = tasks[0].Barrier("b", kLong, 0, {0, 1});
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_THAT(tasks[2].Barrier("b", kLong, 0, {0, 1}).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("A non-participating task")));
  EXPECT_THAT(first.Wait(), Fails(StatusCode::kInvalidArgument));
  EXPECT_THAT(tasks[1].Barrier("b", kLong, 0, {0, 1}).Wait(), Fails(StatusCode::kInvalidArgument));
}

// 86
TEST_P(BarrierWire, UnknownTaskInTheListIsRefused) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  EXPECT_THAT(tasks[0].Barrier("b", kLong, 0, {0, 67}).Wait(),
              Fails(StatusCode::kInvalidArgument, HasSubstr("67")));
}

// 87, 88, 89
TEST_P(BarrierWire, TimeoutIsTheSameForAllAndTheIdStaysUsable) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall first = tasks[0].Barrier("step/7", kShort);
  ASSERT_TRUE(server.WaitUntilParked(1));
  const PendingCall second = tasks[1].Barrier("step/7", kLong);
  const Answer answer = first.Wait();
  EXPECT_THAT(answer, Fails(StatusCode::kDeadlineExceeded,
                            AllOf(HasSubstr("Barrier timed out"), HasSubstr("step/7::0"),
                                  HasSubstr("2/3"))));
  EXPECT_EQ(second.Wait().message, answer.message);
  ExpectBarrierError(answer, "step/7", 0);
  const Answer late = tasks[2].Barrier("step/7", kLong).Wait();
  EXPECT_THAT(late, Fails(StatusCode::kDeadlineExceeded));
  ExpectBarrierError(late, "step/7", 0);
  std::vector<PendingCall> calls;
  for (TaskClient& task : tasks) calls.push_back(task.Barrier("step/7", kLong, 1));
  for (const PendingCall& call : calls) EXPECT_EQ(tasks[0].Counter(call.Wait()), 1);
}

// 90, 105
TEST_P(BarrierWire, TaskInErrorFailsItAtOnce) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  ASSERT_THAT(tasks[0].ReportError(StatusCode::kUnavailable, "x").Wait(), IsOk());
  const Answer answer = tasks[1].Barrier("b", kLong).Wait();
  EXPECT_THAT(answer, Fails(StatusCode::kInternal));
  ExpectBarrierError(answer, "b", 0);
}

// 91
TEST_P(BarrierWire, ErrorWhileWaitingEndsIt) {
  TestServer server(3);
  auto tasks = server.Registered(GetParam(), 3);
  const PendingCall first = tasks[0].Barrier("b", kLong);
  ASSERT_TRUE(server.WaitUntilParked(1));
  ASSERT_THAT(tasks[1].ReportError(StatusCode::kUnavailable, "x").Wait(), IsOk());
  EXPECT_THAT(first.Wait(), Fails(StatusCode::kInternal));
  EXPECT_THAT(tasks[2].Barrier("b", kLong).Wait(), Fails(StatusCode::kInternal));
}

// 92, 94, 101
TEST_P(BarrierWire, CountersFenceTheUsesOfAnId) {
  TestServer server(1);
  auto tasks = server.Registered(GetParam(), 1);
  EXPECT_EQ(tasks[0].Counter(tasks[0].Barrier("b", kLong, 0).Wait()), 0);
  EXPECT_THAT(tasks[0].Barrier("b", kLong, 0).Wait(), IsOk());
  const Answer low = tasks[0].Barrier("b", kLong, -1).Wait();
  EXPECT_THAT(low, Fails(StatusCode::kInternal));
  ExpectBarrierError(low, "b", 0);
  const Answer high = tasks[0].Barrier("b", kLong, 2).Wait();
  EXPECT_THAT(high, Fails(StatusCode::kInternal));
  ExpectBarrierError(high, "b", 0);
  EXPECT_EQ(tasks[0].Counter(tasks[0].Barrier("b", kLong, 1).Wait()), 1);
}

// 95
TEST_P(BarrierWire, SlowTaskGetsTheUseThatTheOthersAreAt) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  EXPECT_THAT(tasks[0].Barrier("b", kShort, 0).Wait(), Fails(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(tasks[0].Barrier("b", kShort, 1).Wait(), Fails(StatusCode::kDeadlineExceeded));
  const Answer slow = tasks[1].Barrier("b", kShort, 0).Wait();
  EXPECT_THAT(slow, Fails(StatusCode::kInternal));
  ExpectBarrierError(slow, "b", 1);
}

// Any task may cancel, with the right counter.
TEST_P(BarrierWire, CancelNeedsTheRightCounter) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall waiter = tasks[0].Barrier("b", kLong);
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_THAT(tasks[1].CancelBarrier("b", -1).Wait(), Fails(StatusCode::kFailedPrecondition));
  EXPECT_THAT(tasks[1].CancelBarrier("b", 1).Wait(),
              Fails(StatusCode::kFailedPrecondition, HasSubstr("likely due to a restart")));
  EXPECT_FALSE(waiter.done());
  EXPECT_THAT(tasks[1].CancelBarrier("b", 0).Wait(), IsOk());
  const Answer cancelled = waiter.Wait();
  EXPECT_THAT(cancelled, Fails(StatusCode::kCancelled));
  ExpectBarrierError(cancelled, "b", 0);
}

// 98
TEST_P(BarrierWire, CancelAfterItPassedFails) {
  TestServer server(1);
  auto tasks = server.Registered(GetParam(), 1);
  ASSERT_THAT(tasks[0].Barrier("b", kLong).Wait(), IsOk());
  EXPECT_THAT(tasks[0].CancelBarrier("b").Wait(),
              Fails(StatusCode::kFailedPrecondition, HasSubstr("already been passed")));
}

// 102
TEST_P(BarrierWire, RepeatedCallReplacesTheFirst) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall first = tasks[0].Barrier("b", kLong);
  ASSERT_TRUE(server.WaitUntilParked(1));
  const PendingCall second = tasks[0].Barrier("b", kLong);
  EXPECT_THAT(first.Wait(), Fails(StatusCode::kCancelled));
  EXPECT_FALSE(second.done());
  EXPECT_THAT(tasks[1].Barrier("b", kLong).Wait(), IsOk());
  EXPECT_THAT(second.Wait(), IsOk());
}

// A long message breaks gRPC's trailers, and the client would receive RESOURCE_EXHAUSTED instead.
TEST_P(BarrierWire, TimeoutOfAHundredTasksHasTheWholeMessage) {
  TestServer server(100);
  auto tasks = server.Registered(GetParam(), 100);
  const Answer answer = tasks[0].Barrier("b", absl::Milliseconds(100)).Wait();
  EXPECT_THAT(answer, Fails(StatusCode::kDeadlineExceeded,
                            AllOf(HasSubstr("Barrier timed out"), HasSubstr("1/100"))));
  EXPECT_LE(answer.message.size(), 3072u);
  ExpectBarrierError(answer, "b", 0);
}

// 107
TEST_P(BarrierWire, DifferentIdsAreIndependent) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall first = tasks[0].Barrier("a", kShort);
  const PendingCall second = tasks[1].Barrier("b", kShort);
  EXPECT_THAT(first.Wait(), Fails(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(second.Wait(), Fails(StatusCode::kDeadlineExceeded));
}

// 110
TEST_P(BarrierWire, WaitsForARestartedTaskInARecoverableJob) {
  ServerOptions options = TestOptions(2);
  options.coordinator.recoverable = true;
  TestServer server(options);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall waiter = tasks[0].Barrier("b", kLong);
  ASSERT_TRUE(server.WaitUntilParked(1));
  ASSERT_THAT(tasks[1].Register(999).Wait(), IsOk());
  EXPECT_THAT(tasks[1].Barrier("b", kLong).Wait(), IsOk());
  EXPECT_THAT(waiter.Wait(), IsOk());
}

// The counters of the restarted task begin at 0 again.
TEST_P(BarrierWire, RestartedRecoverableTaskJoinsTheNextUse) {
  ServerOptions options = TestOptions(2);
  options.coordinator.recoverable = true;
  TestServer server(options);
  auto tasks = server.Registered(GetParam(), 2);
  for (int counter = 0; counter < 3; ++counter) {
    const PendingCall first = tasks[0].Barrier("b", kLong, counter);
    ASSERT_THAT(tasks[1].Barrier("b", kLong, counter).Wait(), IsOk());
    ASSERT_THAT(first.Wait(), IsOk());
  }
  ASSERT_THAT(tasks[1].Register(999).Wait(), IsOk());
  const PendingCall restarted = tasks[1].Barrier("b", kLong, 0);
  ASSERT_TRUE(server.WaitUntilParked(1));
  EXPECT_EQ(tasks[0].Counter(tasks[0].Barrier("b", kLong, 3).Wait()), 3);
  EXPECT_EQ(tasks[1].Counter(restarted.Wait()), 3);
}

// 113
TEST_P(BarrierWire, IsAbortedWhenTheServiceStops) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall waiter = tasks[0].Barrier("b", kLong);
  ASSERT_TRUE(server.WaitUntilParked(1));
  server->Stop();
  EXPECT_THAT(waiter.Wait(), Fails(StatusCode::kAborted));
}

// Upstream dereferences null here.
TEST_P(BarrierWire, UnknownCallerIsRefusedBeforeItCounts) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  EXPECT_THAT(server.Task(GetParam(), 5).Barrier("b", kLong).Wait(),
              Fails(StatusCode::kInvalidArgument));
  const PendingCall first = tasks[0].Barrier("b", kLong);
  EXPECT_THAT(tasks[1].Barrier("b", kLong).Wait(), IsOk());
  EXPECT_THAT(first.Wait(), IsOk());
}

// A client that dies after it arrived has still arrived.
TEST_P(BarrierWire, AbandonedArrivalStillCounts) {
  TestServer server(2);
  auto tasks = server.Registered(GetParam(), 2);
  const PendingCall abandoned = tasks[0].Barrier("b", kLong);
  ASSERT_TRUE(server.WaitUntilParked(1));
  abandoned.Cancel();
  ASSERT_TRUE(Eventually([&] { return server->frontend().dropped_waits() == 1; }));
  EXPECT_THAT(tasks[1].Barrier("b", kLong).Wait(), IsOk());
}

}  // namespace
}  // namespace ferry::coord
