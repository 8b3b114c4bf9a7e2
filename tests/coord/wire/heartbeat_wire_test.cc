// SPDX-License-Identifier: Apache-2.0
// Signs of life over real connections: pending calls, connections that end, and probes.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent_fixture.h"
#include "test_server.h"
#include "tests/support/tcp_proxy.h"

namespace ferry::coord {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

// The register barrier is off, and the heartbeat timeout exceeds the duration of any test.
ServerOptions PatientOptions(int tasks) { return TestOptions(tasks); }

// A timeout that expires within a test, for tasks without other signs of life.
ServerOptions HastyOptions(int tasks) {
  ServerOptions options = TestOptions(tasks);
  options.coordinator.heartbeat_timeout = absl::Seconds(4);
  return options;
}

TaskState StateOf(TestServer& server, int task) {
  return server->executor().Run([task](Coordinator& coordinator) {
    return coordinator.membership().task(TaskId(task)).state;
  });
}

// A task whose connection the test can cut, or stall.
struct ProxiedTask {
  ProxiedTask(TestServer& server, Dialect dialect, int task)
      : proxy(std::make_unique<TcpProxy>(server->port())),
        client(dialect, NewChannel(proxy->address()), task, server.incarnation()) {}

  std::unique_ptr<TcpProxy> proxy;
  TaskClient client;
};

class HeartbeatWire : public WireTest {
 protected:
  // Two tasks poll; the connection of task 1 stalls, and task 0 is notified that task 1 is dead.
  void ExpectStoppedClientIsNoticed(const ServerOptions& options) {
    TestServer server(options);
    TaskClient survivor = server.Task(GetParam(), 0);
    ProxiedTask stopped(server, GetParam(), 1);
    ASSERT_THAT(survivor.Register(100).Wait(), IsOk());
    ASSERT_THAT(stopped.client.Register(101).Wait(), IsOk());
    PendingCall poll = survivor.Poll();
    PendingCall lost = stopped.client.Poll();
    ASSERT_TRUE(server.WaitUntilParked(2));
    stopped.proxy->SetStalled(true);
    EXPECT_THAT(poll.Wait(), Fails(StatusCode::kUnavailable, HasSubstr("task 1")));
    EXPECT_EQ(StateOf(server, 0), TaskState::kConnected);
  }
};

// heartbeat_timeout_seconds=300 at a coordinator of 100: no heartbeat comes for longer than that,
// but the client polls for errors. Task 1 does not poll, and its death shows that the time is over.
TEST_P(HeartbeatWire, IdleClientThatPolls_OutlivesTheHeartbeatTimeout) {
  TestServer server(HastyOptions(2));
  std::vector<TaskClient> tasks = server.Registered(GetParam(), 2);
  PendingCall poll = tasks[0].Poll();
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kUnavailable, HasSubstr("task 1")));
  EXPECT_EQ(StateOf(server, 0), TaskState::kConnected);
  EXPECT_EQ(StateOf(server, 1), TaskState::kError);
}

// kill -9: the kernel ends the connection. The heartbeat timeout of a minute is far away.
TEST_P(HeartbeatWire, KilledClient_IsDetectedByTheEndOfItsConnection) {
  TestServer server(PatientOptions(2));
  TaskClient survivor = server.Task(GetParam(), 0);
  ProxiedTask killed(server, GetParam(), 1);
  ASSERT_THAT(survivor.Register(100).Wait(), IsOk());
  ASSERT_THAT(killed.client.Register(101).Wait(), IsOk());
  PendingCall poll = survivor.Poll();
  PendingCall lost = killed.client.Poll();
  ASSERT_TRUE(server.WaitUntilParked(2));
  killed.proxy->SetRefusing(true);
  killed.proxy->Cut();
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kUnavailable, HasSubstr("connection ended")));
  EXPECT_EQ(StateOf(server, 0), TaskState::kConnected);
  EXPECT_EQ(StateOf(server, 1), TaskState::kError);
}

// SIGSTOP, or a machine that vanished: the connection stays, but probes are not answered.
TEST_P(HeartbeatWire, StoppedClient_IsDetectedByItsProbes) {
  ServerOptions options = PatientOptions(2);
  options.keepalive_time = absl::Milliseconds(300);
  options.keepalive_timeout = absl::Seconds(1);
  ExpectStoppedClientIsNoticed(options);
}

// The heartbeat timeout is shorter than the probes' usual times: they come sooner.
TEST_P(HeartbeatWire, ProbesFollowTheHeartbeatTimeout) {
  ServerOptions options = PatientOptions(2);
  options.coordinator.heartbeat_timeout = absl::Seconds(3);
  options.coordinator.heartbeat_timeout_is_limit = true;
  ExpectStoppedClientIsNoticed(options);
}

// A proxy dropped the connection; the client opens another one. Task 2 dies later, and does not
// return.
TEST_P(HeartbeatWire, ReconnectedClient_KeepsTheTask) {
  TestServer server(PatientOptions(3));
  TaskClient survivor = server.Task(GetParam(), 0);
  ProxiedTask cut(server, GetParam(), 1);
  ProxiedTask killed(server, GetParam(), 2);
  ASSERT_THAT(survivor.Register(100).Wait(), IsOk());
  ASSERT_THAT(cut.client.Register(101).Wait(), IsOk());
  ASSERT_THAT(killed.client.Register(102).Wait(), IsOk());
  PendingCall poll = survivor.Poll();
  PendingCall first = cut.client.Poll();
  PendingCall last = killed.client.Poll();
  ASSERT_TRUE(server.WaitUntilParked(3));
  cut.proxy->Cut();
  EXPECT_THAT(first.Wait(), Fails(StatusCode::kUnavailable));
  // The channel may offer the connection that has ended for another moment.
  for (int i = 0; i < 1000 && cut.client.Heartbeat(101).Wait().code != absl::StatusCode::kOk; ++i) {
  }
  PendingCall again = cut.client.Poll();
  ASSERT_TRUE(server.WaitUntilParked(3));
  killed.proxy->SetRefusing(true);
  killed.proxy->Cut();
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kUnavailable, HasSubstr("task 2")));
  EXPECT_EQ(StateOf(server, 1), TaskState::kConnected);
}

// A client that cancels its poll, but stays connected.
TEST_P(HeartbeatWire, PollThatIsCancelled_KeepsTheTask) {
  TestServer server(PatientOptions(3));
  std::vector<TaskClient> tasks = server.Registered(GetParam(), 2);
  ProxiedTask killed(server, GetParam(), 2);
  ASSERT_THAT(killed.client.Register(102).Wait(), IsOk());
  PendingCall poll = tasks[0].Poll();
  PendingCall given_up = tasks[1].Poll();
  PendingCall last = killed.client.Poll();
  ASSERT_TRUE(server.WaitUntilParked(3));
  given_up.Cancel();
  ASSERT_TRUE(server.WaitUntilParked(2));
  killed.proxy->SetRefusing(true);
  killed.proxy->Cut();
  EXPECT_THAT(poll.Wait(), Fails(StatusCode::kUnavailable, HasSubstr("task 2")));
  EXPECT_EQ(StateOf(server, 1), TaskState::kConnected);
}

// The clients of each generation send heartbeats at their own fraction of their timeout.
TEST_P(HeartbeatWire, ClientsOfTheCoordinationService_BeatTwiceInTheirTimeout) {
  TestServer server(PatientOptions(1));
  std::vector<TaskClient> tasks = server.Registered(GetParam(), 1);
  const absl::Duration timeout = server->executor().Run([](Coordinator& coordinator) {
    return coordinator.membership().task(TaskId(0)).heartbeat_interval.TimeoutFor(absl::Seconds(5));
  });
  EXPECT_EQ(timeout, absl::Seconds(10));
}

FERRY_IN_EVERY_DIALECT(HeartbeatWire);

// Ferry's own agents receive the timeout in the Welcome.
TEST(HeartbeatOfAgents, IsNotLearned) {
  TestServer server(PatientOptions(1));
  const Agents agents = ConnectAll(server, 1);
  const absl::Duration timeout = server->executor().Run([](Coordinator& coordinator) {
    return coordinator.membership().task(TaskId(0)).heartbeat_interval.TimeoutFor(absl::Seconds(5));
  });
  EXPECT_EQ(timeout, absl::ZeroDuration());
}

}  // namespace
}  // namespace ferry::coord
